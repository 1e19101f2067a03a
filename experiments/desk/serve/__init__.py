"""A policy in the shadow of a real cluster: what it sees comes from Prometheus, what it orders is logged.

`seen` says what vLLM's metrics tell, and finds out whether a policy needs more; `metrics` reads them from
Prometheus; `ordered` says how many pods should serve; `shadow` decides, logs and exports; `scale` writes
replica counts to Kubernetes, if it is told to; `command` is the command line.
"""
