"""The mathematics of Aladdin (Nie et al., "Joint Placement and Scaling for SLO-Aware LLM Serving").

Plain functions and records, which know nothing of the simulator, and in the second table what puts
them to work on a cluster; the compiled best-fit router of the engine follows `constraints` and
`placement`. Fits and change points need the extra `forecast` (statsmodels with SciPy, ruptures),
the programmes `solver`; both are imported where they are used.

| question | module |
|---|---|
| how long do prefill and decode take, what context keeps the SLO | `performance` (section 3, Eq. 1 to 4) |
| the same for this project's calibrated iteration times | `profiling` |
| has a worker drifted, what does it take now | `online` (section 5.1, step 3) |
| how many GPUs make a worker | `configuration` (section 4.1, Eq. 5 and 6, Table 3) |
| how long will an output be | `prediction` (sections 2.3 and 4.3) |
| what can a worker take | `constraints` (section 4.2, b to e) |
| which worker gets a request | `placement` (Algorithm 1, Figure 3) |
| how few workers would do | `programme` (section 4.2, a to h); how far are the heuristics from it: `gap` |
| who moves when predictions fail | `rebalance` (section 4.3, Algorithm 2) |
| how many workers does a rate need, when has it changed | `demand` (section 5.2, Eq. 7) |
| how many groups of schedulers | `groups` (appendix A, Eq. 8) |

| on a cluster | module |
|---|---|
| the policy `aladdin`: what happens at a heartbeat | `policy` |
| its baselines: shortest queue, power of two, machine-wide workers | `simple` |
| which pool serves, what history says | `fleet` |
| models of all workers from their reports | `learning` |
| Algorithm 2 on what waits | `moves` |
| Eq. 7 from history and experience | `scaling` |

Symbols: h, j, k1, c1, k2, c2, c3 are fields of `KvUse`, `PrefillTime`, `DecodeTime`; T_pre and
T_dec are `ttft_slo_s` and `itl_slo_s` (the paper's ATGT is a mean inter-token latency); M is
`kv_capacity`.
"""
