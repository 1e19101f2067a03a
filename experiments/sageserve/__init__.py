"""Figures of SageServe (Jaiswal et al., "Serving Models, Fast and Slow", arXiv 2502.14617).

`fig01` to `fig05` are its motivation, `fig10` its workload, `fig11`, `fig16` and `fig17` its evaluation on
days and the week (`days`: one run and the rows that figures share), `tableF` its forecasts. `setting` has
the week and what arrives in it.
"""
