"""Figures of Chiron (Patke et al., arXiv 2501.08090); `setting` says what they share."""
