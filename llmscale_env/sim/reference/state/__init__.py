"""The order of events, one request, and KV memory in blocks."""
