"""Figures of Aladdin (Nie et al., 2024); `setting` says what they share."""
