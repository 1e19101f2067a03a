"""Figures of SageServe (Jaiswal et al., 2025)."""
