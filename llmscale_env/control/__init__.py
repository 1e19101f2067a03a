"""A cluster between two decisions: what policies see and order, what it costs, what an episode leaves.

`view` and its parts (`window`, `snapshot`, `endpoints`, `regions`, `demand`) are what is seen, `command` is
what is ordered, `reward` has the costs. `simulation` steps clusters, `run` lets a policy run one episode,
`result` is what comes out. `forecast` has the forecasters.
"""
