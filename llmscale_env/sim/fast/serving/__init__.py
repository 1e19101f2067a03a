"""What happens to a request, from its arrival to its last token.

`routing`, `region_routing` and `placement` choose an instance, `next_request` and `admission` who is taken,
`timing` and `batch` run iterations, and `boundary` ends them. `handover`, `live_pairs` and `network` are for
KV that moves; `wake` cuts short what an event makes stale.
"""
