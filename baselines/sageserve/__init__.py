"""The mathematics of SageServe (Jaiswal et al., "Serving Models, Fast and Slow", arXiv 2502.14617).

Most of it are plain functions and records on numbers, which know nothing of the simulator; `policy`,
`endpoints` and `profile` bring them to a cluster. Forecasts need the extra
`forecast` (statsmodels with SciPy), the programme `solver`; both are imported where they are used.

What happens at each arrival is in the engine (docs/engine.md, section 17): which region and instance gets a
request (section 6.2), when a queue's go on (6.3), when an instance comes or goes and from where (6.5, 7.2).
`tests/sageserve_rules.py` states these rules as the paper has them, on numbers alone, and tests hold the
reference engine against them, look by look.

| question | module |
|---|---|
| how many tokens will come in the next hour | `forecast` (section 6.4) |
| how many instances of which LLM, where, on which GPUs | `programme` (section 5.1) |
| how many tokens per second an instance serves | `throughput` (theta, Figure 2), if nobody waits |
| the same at a target latency | `profile` |
| the policies `reactive`, `siloed`, `lt-i`, `lt-u`, `lt-ua` | `policy` |
| a scenario's endpoints as the programme takes them | `endpoints` |
"""
