"""`llmscale/PlacementPerRequest-v0`: which worker gets this request, as in Aladdin."""

from __future__ import annotations

from llmscale_env.envs.base import ServingEnv
from llmscale_env.envs.vector import ServingVectorEnv


class PlacementPerRequestEnv(ServingEnv):
    """A request has come: which of four workers gets it, or does it wait?

    - **Decided**, at every arrival: the worker that gets the first waiting request, or to wait.
    - **Seen**: that request, and each worker as it would be with the request on it.
    - **Paid**: late requests; the four GPUs are held all the time.
    - **Tension**: to spread requests evenly is good in quiet times. Busy times bring more than the four
      workers can serve in time, and evenly spread requests are then all a little late. To pack them while
      the targets hold keeps some on time.
    - **Leaderboard**: docs/leaderboard.md#placement-per-request.

    ## Description

    Llama-2-13b is served on one of Aladdin's machines: four A100-80GB, each a worker of its own (its best
    degree for this LLM, Table 3). Requests are chat (ShareGPT's lengths, one turn). The first token is due
    within 600 ms, then a token every 30 ms on average (Table 2). They come at 11.4 per second in busy times
    and at 4.6 in quiet ones, of 30 s each on average (ours).

    Every request waits until the agent gives it to a worker, for good: it joins the end of that worker's
    queue. A prefill stops all decoding there, so running requests lose some of the time by which they are
    ahead of 30 ms per token. Every further request also makes iterations longer. Shortest queue spreads
    requests; Aladdin's best fit (section 4.2) packs them. To wait a little may let time ahead grow.

    A decision comes at every arrival, and at the ends of intervals of 5 s. While a request waits there are
    more: one millisecond after a placement, else after 200 ms. Between decisions the cluster is simulated
    exactly to the token (docs/engine.md, section 13). No worker is started or stopped.

    ## Action Space

    `MultiDiscrete` with one part. The request at issue is the one that waits and arrived first. Those
    behind it come after it, one at each decision, so that a late one cannot be left behind.

    `rank-k` is the worker with the k-th fewest requests; ties go by number, and those that cannot take the
    request come last. Workers are alike: with names by number, a network would have to learn the same thing
    for each. `wait` leaves the request where it is. A worker that cannot take it (it does not serve, or no
    request is at issue) is masked out by `action_masks()` and `info["action_mask"]`. To choose it is to
    wait, and counts in `info["clipped"]`. A worker that serves takes any number of requests.

    ## Observation Space

    `Box`, float32, dimensionless, on fixed scales, clipped to its bounds. Workers are seen with the request
    at issue on them, by rank as in the action. Times are those of Aladdin's linear models (Eq. 2 and 3),
    fitted to the worker's iteration times. For a worker that does not serve, everything is 0. Entry 0 shows
    the time left, which no service has; `observation` without the block `clock` omits it. No other entry
    does (`tests/test_leaks.py`). Even so, to stop serving early does not pay
    (`tests/test_anti_cheat_worlds.py`).

    | entry | of Aladdin's programme | 0.5 is |
    |---|---|---|
    | `prefill` | (c): `c1 + k1 * tokens` over the prompts of its queue and this one | the target |
    | `decode` | (b): `c3 + c2 * requests + k2 * context` of all requests, `gamma` = 0 | the target |
    | `decode_end` | the same with all predicted outputs, `gamma` = 1 | the target |
    | `kv` | memory in use, needs of queued and preempted requests, this one's prompt | full |
    | `kv_end` | all inputs and predicted outputs at once, more than (e) asks | full |
    | `slack` | (d), right-hand side: least time ahead of running requests, over 600 ms | |

    `gamma` = 0 counts requests as they stand. Time ahead is `30 ms * tokens - time since the first token`.

    ## Rewards

    Minus the cost of the time until the next decision (`llmscale_env.control.reward`), the sum of

    - `gpu`: GPU-seconds held over those of all four GPUs in 5 s: 60 in an episode, whatever is done;
    - `violations`: 10 x the requests that became certain to miss a target over the requests *expected* in 5
      s: some 0.25 each;
    - `loads`: nothing is started;
    - `leftover`: at the horizon, the GPU-seconds that serving the unfinished requests one by one would
      take, in the unit of `gpu`.

    Each request is charged at most once, when its violation becomes certain: for the first token after 600
    ms, for the mean time per token when the request ends. A request that is left waiting becomes late.
    `info["reward_parts"]` has the four with their sign.

    ## Starting State

    Four workers serve, and no request has come. Requests are drawn from `self.np_random`: one seed, one
    episode, whatever the agent does.

    ## Episode End

    Truncated after 300 s: some 2,500 decisions, more if requests wait. There is no termination.

    ## Arguments

    - `scenario="placement-per-request"`: name, YAML file or `Scenario`. It needs `decisions: arrivals` and
      routes of kind `hold`;
    - `overrides={}`: its fields by dotted path, such as `{"workload.rate_scale": 0.8}`. With
      `{"fleet.pools.worker.mtbf_s": 120.0}` workers fail at random; what ran there comes back and is placed
      anew;
    - `forecaster`: not used, since there is no forecast where decisions are made at arrivals;

    All others are those of `ServingEnv`.

    Episodes of the vectorised form differ in their number of steps, and so do the times at which they are.

    ## Information

    `metrics` has `queue/gateway`, requests without a worker, in place of `queue/QUEUE`.

    Everything else is as `ServingEnv` has it.

    ## References

    Nie et al., "Aladdin: Joint Placement and Scaling for SLO-Aware LLM Serving" (2024). ShareGPT's lengths:
    docs/workloads.md.

    ## Version History

    - v0: first version. After 0.1.0, `best-fit` counts prompts that are being prefilled in its TTFT limit,
      and intervals between tokens in what running requests have saved.
    """

    scenario_name = "placement-per-request"
    observation = ("clock", "request", "workers")
    action = ("place_request",)


class PlacementPerRequestVectorEnv(ServingVectorEnv):
    """Many episodes of `llmscale/PlacementPerRequest-v0` in one call: see `PlacementPerRequestEnv`."""

    scenario_name = PlacementPerRequestEnv.scenario_name
    observation = PlacementPerRequestEnv.observation
    action = PlacementPerRequestEnv.action
