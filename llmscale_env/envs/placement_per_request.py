"""`llmscale/PlacementPerRequest-v0`: which worker gets this request, as in Aladdin."""

from __future__ import annotations

from llmscale_env.envs.base import ServingEnv
from llmscale_env.envs.vector import ServingVectorEnv


class PlacementPerRequestEnv(ServingEnv):
    """A request has come: which of four workers gets it, or does it wait?

    ## Description

    Llama-2-13b is served on one of Aladdin's machines: four A100-80GB, each a worker of its own
    (its best degree for this LLM, Table 3). Chat requests (ShareGPT's lengths, one turn) want their
    first token within 600 ms and a token every 30 ms on average (Table 2). They come at 11.4 per
    second in busy times and at 4.6 in quiet ones, of 30 s each on average (ours); the busy ones are
    more than the four can serve in time.

    Every request waits until the agent gives it to a worker, for good: it joins the end of that
    worker's queue. A prefill stops all that decode there, so to place a request costs those who run
    there some of the time by which they are ahead of 30 ms per token; and every request more makes
    iterations longer. If all are to miss the target a little, all are late: to spread requests
    evenly (shortest queue) is good in quiet times, to pack them while the targets hold (Aladdin's
    best fit, section 4.2) in busy ones. To wait a little may let time ahead grow.

    A decision is made at every arrival, and at the ends of intervals of 5 s. While anybody waits
    there is another one: a millisecond later if the last one has placed a request, else after 200
    ms. Between decisions the cluster is simulated exactly to the token (docs/engine.md, section
    13). The workers are what they are: none is started or stopped.

    ## Action Space

    `MultiDiscrete` with one part. At issue is the request that waits and arrived first; those
    behind it come after it, one at each decision, so that a late one cannot be left behind.

    `rank-k` is the worker with the k-th fewest requests (ties: by number; those that cannot take
    the request come last): workers are alike, and named by number a network would have to learn for
    each anew what to do with it. `wait` leaves the request where it is. A worker that cannot take
    it (it does not serve, or no request is at issue) is masked out by `action_masks()` and
    `info["action_mask"]`; to choose it is to wait, and is counted in `info["clipped"]`. A worker
    that serves takes any number of requests.

    ## Observation Space

    `Box`, float32, dimensionless, on fixed scales, clipped to its bounds. Workers are seen with the
    request at issue on them; times are those of Aladdin's linear models (Eq. 2 and 3), fitted to the
    worker's iteration times. Workers come by rank, as in the action. Of a worker that does not serve,
    everything is 0. `env.unwrapped.observation_entries` and `action_choices` list what the tables of
    docs/environments list.

    Entry 0 counts to the horizon, which no service has; `observation` without the block `clock` leaves it
    out. No other entry does (`tests/test_leaks.py`). To stop serving early does not pay all the same
    (`tests/test_anti_cheat_worlds.py`).

    - `prefill` is constraint (c) of Aladdin's programme: `c1 + k1 * tokens` over the prompts of its
      queue and this one; 0.5 is the target.
    - `decode` is (b): `c3 + c2 * requests + k2 * context` of all requests there and this one, as
      they stand (`gamma` = 0); `decode_end` with all predicted outputs (`gamma` = 1); 0.5 is the
      target.
    - `kv`: KV memory in use, what queued and preempted requests need, and this one's prompt;
      `kv_end`: all inputs and predicted outputs at once, which is more than (e) asks; 0.5 is full.
    - `slack` is the right-hand side of (d): of the running requests the least `30 ms * tokens -
      time since the first token`, over 600 ms.

    ## Rewards

    Minus the cost of the time until the next decision (`llmscale_env.control.reward`), the sum of

    - `gpu`: GPU-seconds held over those of all four GPUs in 5 s: 60 in an episode, whatever is
      done;
    - `violations`: 10 x the requests that became certain to miss a target over the requests
      *expected* in 5 s: 0.25 each, or so;
    - `loads`: nothing is started;
    - `leftover`: at the horizon, the GPU-seconds that serving the unfinished requests one by one
      would take, in the unit of `gpu`.

    Each request is charged at most once, when its violation becomes certain: the first token's
    after 600 ms, that of the mean time per token when it ends. To leave a request waiting makes it
    late. `info["reward_parts"]` has the four with their sign.

    ## Starting State

    Four workers serve, nobody waits, no request has come. The requests of the episode are drawn
    from `self.np_random`: one seed, one episode, whatever the agent does.

    ## Episode End

    Truncated after 300 s: some 2,500 decisions, more if requests wait. There is no termination.

    ## Arguments

    - `scenario="placement-per-request"`: name, YAML file or `Scenario`. It needs `decisions:
      arrivals` and routes of kind `hold`;
    - `overrides={}`: its fields by dotted path, such as `{"workload.rate_scale": 0.8}`, or
      `{"fleet.pools.worker.mtbf_s": 120.0}`: workers then fail at random, what ran there comes back
      and is placed anew;
    - `forecaster`: not used, since there is no forecast where decisions are made at arrivals;

    All others are those of `ServingEnv`.

    Episodes of the vectorised form differ in their number of steps, and so do the times at which they stand.

    ## Information

    `metrics` has `queue/gateway`, requests without a worker, in place of `queue/QUEUE`.

    Everything else is as `ServingEnv` has it.

    ## References

    Nie et al., "Aladdin: Joint Placement and Scaling for SLO-Aware LLM Serving" (2024). ShareGPT's
    lengths: docs/workloads.md.

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
