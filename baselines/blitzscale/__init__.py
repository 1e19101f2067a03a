"""BlitzScale (Zhang et al., "Fast and Live Model Auto Scaling with O(1) Host Caching") and its baselines.

The mathematics are plain functions and records, which know nothing of the simulator. The programme needs
the extra `solver`, imported where it is used.

| question | module |
|---|---|
| who sends weights to whom, when do they come | `llmscale_env.cluster.multicast` (section 5.1, Algorithm 1) |
| how many layers of a batch does a loading instance execute | `zigzag` (section 5.2, Eq. 1, C1 to C3) |
| what both instances do, step by step | `live` (Figure 12) |
| when and how far to scale | `trigger` (section 5.3) |
| which instances stay whatever the load | `base_fleet` (section 1) |
| what an instance can do, what is asked of all of them | `monitor` |
| the policies `blitzscale`, `serverlessllm`, `allcache` | `policy`, by `llmscale_env.control.scaling` |
| `distserve` | `distserve` |
"""
