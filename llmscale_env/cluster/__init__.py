"""Hardware and what it takes: GPUs, LLMs, iteration times, memory, loading, links.

`cards` has the published numbers of GPUs and LLMs. `iteration_time` says how long an iteration takes:
measured (`iteration_data`; `readers` and `fitting` make it) or from the cards alone (`roofline`). `kv` says
how many tokens fit, `loading` how long weights take to come, `topology` and `machines` which links they
cross, `multicast` in which order. `optimisations` has prefix caching and speculative decoding.
"""
