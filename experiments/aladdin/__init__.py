"""Figures of Aladdin (Nie et al., "Joint Placement and Scaling for SLO-Aware LLM Serving", 2024).

`fig02` to `fig08` are its motivation and models, on numbers alone; `fig09`, `fig10` attainment on four GPUs
(`end_to_end`), `fig11`, `fig12` the GPUs that it takes (`fleets`, by the search of `least`), `fig13` and
`figA` its overhead. `setting` says what they share, `serving` what the simulated ones do. Studies are ours.
"""
