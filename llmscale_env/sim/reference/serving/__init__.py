"""What happens to a request, from its arrival to its last token.

`routing`, `region_routing` and `placement` choose an instance, `scheduler` who is taken, `controller` moves
the batch limit, `handover` and `network` are for KV that moves. The iteration itself is in `instance`.
"""
