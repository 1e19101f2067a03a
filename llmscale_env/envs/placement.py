"""`llmscale/Placement-v1`: how many workers of which degree, and how requests find one, as in Aladdin."""

from __future__ import annotations

from llmscale_env.envs.base import ServingEnv
from llmscale_env.envs.vector import ServingVectorEnv


class PlacementEnv(ServingEnv):
    """Workers of one, two or four GPUs: how many of which, and which of them gets a request?

    - **Decided**, every 5 s: how many workers of each degree, the rule by which arrivals find a worker, and
      how strict best fit is.
    - **Seen**: arrivals and their forecast, lengths, latencies, requests without a worker, workers by
      state.
    - **Paid**: GPU time, late requests and starts.
    - **Tension**: demand goes up and down within minutes, and a worker serves 3.4 to 24 s after its order.
      To pack requests closely saves workers as long as the targets hold. No fixed fleet has 99 % on time.
    - **Leaderboard**: docs/leaderboard.md#placement.

    ## Description

    Llama-2-13b is served on up to 24 A100-80GB, in machines of four without NVLink. Workers have one, two
    or four GPUs (tensor parallelism). The first token is due within 600 ms, then a token every 30 ms on
    average: the targets of Aladdin's Table 2.

    | requests | lengths | rate |
    |---|---|---|
    | questions | ShareGPT, one turn | like a day of ten minutes, 2.4/s to 21.6/s |
    | conversations | prompts of all turns, up to 2,048 tokens (ours) | 6/s for 90 s, 0 for 90 s, on average |

    Together that is 15 per second in the mean. Fleet and rates are ours: the paper's arrivals are Poisson
    at a fixed rate, and its testbed has one machine.

    | GPUs of a worker | requests of 370 tokens within 30 ms per token | GPU-milliseconds per prompt token |
    |---|---|---|
    | 1 | 57 | 0.12 |
    | 2 | 71 | 0.27 |
    | 4 | 115 | 0.56 |

    Over PCIe, GPUs wait for each other. So workers of one GPU serve most per GPU, as in the paper's Table 3
    for this LLM. A prefill stops all decoding on its worker, and larger workers shorten prefills.

    As in Aladdin, decisions come at every heartbeat: the number of workers (sections 4.1 and 5.2), the
    placement rule and the strictness of best fit (section 4.2, Algorithm 1). Between decisions the cluster
    is simulated exactly to the token (docs/engine.md, sections 6 and 14).

    A worker ordered now serves after its weights are loaded. That takes 3.4 to 4.6 s from the host memory
    of a machine that has had a worker of its pool in the last 300 s, else 8 to 24 s from SSD. A worker of
    four GPUs loads four times as fast. One that is given up finishes its running requests first, and is
    charged until then.

    ## Action Space

    `MultiDiscrete`. `action_masks()` and `info["action_mask"]` say which choices are possible now, each
    part by itself: together, pools may still order more GPUs than there are. Such an order is clipped and
    counted in `info["clipped"]`.

    - `POOL/instances`: how many workers the pool should have (acquiring, loading and active ones).
    - `rule`: for arrivals from now on. `jsq-requests` joins the shortest queue, `power-of-two` the shorter
      of two, and `least-kv` goes to the worker with the largest share of KV memory left.
    - `gamma`, for `best-fit` only: share of the predicted output that counts as context. With 0 the first
      iteration meets the target, with 1 the last one does too.
    - `theta`, for `best-fit` only: share of the slack that may be used; above 1 more than the model allows.

    Best fit judges each worker by linear times fitted to its own degree's iteration times. A request that
    no worker may take waits, and is tried again at every decision. That is ours: Algorithm 1 opens a new
    worker for it, and here the agent orders workers. With `fallback: least` in the scenario it goes to the
    emptiest one.

    ## Observation Space

    `Box`, float32, dimensionless, on fixed scales, clipped to its bounds. "Expected" is the mean of the
    scenario; an interval is the last one. Entry 0 shows the time left, which no service has; `observation`
    without the block `clock` omits it. No other entry does (`tests/test_leaks.py`). Even so, to stop
    serving early does not pay (`tests/test_anti_cheat_worlds.py`).

    ## Rewards

    Minus the cost of the interval (`llmscale_env.control.reward`), the sum of

    - `gpu`: GPU-seconds held (loading and draining included) over those of all 24 GPUs;
    - `violations`: 10 x the requests that became certain to miss a target (or were rejected) over the
      requests *expected* per interval;
    - `loads`: 0.02 per worker started;
    - `leftover`: at the horizon, the GPU-seconds that serving the unfinished requests one by one would
      take, in the unit of `gpu`.

    Each request is charged at most once, when its violation becomes certain. Division by expected arrivals
    leaves nothing to gain by serving fewer. `info["reward_parts"]` has the four with their sign.

    ## Starting State

    Twelve workers of one GPU serve, none is loading, no request waits. Requests are drawn from
    `self.np_random`: one seed, one episode, whatever the agent does.

    ## Episode End

    Truncated after 900 s (180 decisions). There is no termination.

    ## Arguments

    - `scenario="placement"`: name, YAML file or `Scenario`. Every route needs pools; `best-fit`, `gamma`
      and `theta` exist if every route has a `placement`;
    - `overrides={}`: its fields by dotted path, such as
      `{"fleet.max_gpus": 16, "workload.rate_scale": 0.5}`;

    All others are those of `ServingEnv`.

    ## Information

    `metrics` has `queue/gateway`, requests without a worker, in place of `queue/QUEUE`.

    Everything else is as `ServingEnv` has it.

    ## What is not as in Aladdin

    Rules hold until the next decision. A request is placed when it arrives, not at the heartbeat, and is
    not moved afterwards (Algorithm 2 is left to a policy: `Command.assign`). Slots of the three pools are
    on machines of their own.

    ## References

    Nie et al., "Aladdin: Joint Placement and Scaling for SLO-Aware LLM Serving" (2024). ShareGPT's lengths:
    docs/workloads.md.

    ## Version History

    - v1: machines without NVLink, on which workers of one GPU are the best, as in the paper; an application
      whose prompts hold conversations; requests that no worker may take wait. Figures of v0 do not compare
      with those of v1.
    - v0: first version, with NVLink, 25 short questions per second, and `fallback: least`. After 0.1.0,
      `best-fit` counts prompts that are being prefilled in its TTFT limit, and intervals between tokens in
      what running requests have saved.
    """

    scenario_name = "placement"
    observation = (
        "clock",
        "arrivals",
        "forecast",
        "lengths",
        "latency",
        "gateway",
        "fleet",
        "last_action",
    )
    action = ("instance_counts", "placement")


class PlacementVectorEnv(ServingVectorEnv):
    """Many episodes of `llmscale/Placement-v1` advanced in one call: see `PlacementEnv`."""

    scenario_name = PlacementEnv.scenario_name
    observation = PlacementEnv.observation
    action = PlacementEnv.action
