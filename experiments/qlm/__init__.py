"""Figures of QLM (Patke et al., "Queue Management for SLO-Oriented LLM Serving", SoCC 2024).

`fig01` to `fig05` are its motivation, on one instance or a few (`setting`); `fig09` to `fig17` its
evaluation, on workloads A and B (`loads`) and C (`mega`); `fig18` to `fig20` its estimator, its groups and
its overhead.
"""
