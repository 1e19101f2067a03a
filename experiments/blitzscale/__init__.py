"""Figures of BlitzScale (Zhang et al., 2024)."""
