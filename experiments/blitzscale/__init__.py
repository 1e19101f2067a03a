"""Figures of BlitzScale (Zhang et al., "Fast and Live Model Auto Scaling with O(1) Host Caching", 2024)."""
