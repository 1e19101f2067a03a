"""Figures of BlitzScale (Zhang et al., "Fast and Live Model Auto Scaling with O(1) Host Caching", 2024).

`fig01` to `fig05` are its motivation, `fig09` to `fig12` its worked examples, `fig13` to `fig18` its
evaluation (`end_to_end`: systems side by side). `setting` says what they share, `serving` what the simulated
ones do; `demand` and `host_cache` are computed from the trace. Studies are ours.
"""
