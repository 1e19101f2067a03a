"""A planner that tries its orders on twins of the cluster: `policy` tries them in `futures`."""
