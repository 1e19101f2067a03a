"""A planner that tries its orders on twins of the cluster: `futures` (what may come), `policy` (what is tried)."""
