"""What happens to a request, from its arrival to its last token.

`routing`, `region_routing` and `placement` choose an instance, `next_request` and `admission` who is taken,
`timing` and `batch` run iterations, and `boundary` ends them. `vllm_v1` does both for instances of vLLM V1,
whose KV memory is in blocks, with `prefix_cache` if they have one. `handover`, `live_pairs` and `network` are
for KV that moves; `wake` cuts short what an event makes stale.
"""
