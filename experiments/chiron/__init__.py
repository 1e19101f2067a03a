"""Figures of Chiron (Patke et al., arXiv 2501.08090).

`fig02` to `fig06` are its motivation, `fig11`, `fig12` and `fig15` its local autoscaler on one instance
(`instance`, `convergence`), `fig14` its estimate of waiting times (`queue_waits`), the others its evaluation:
`setting` and `loads` say what they share. `llumnix_sweep` finds settings for its baseline.
"""
