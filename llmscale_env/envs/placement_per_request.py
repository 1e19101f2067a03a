"""`llmscale/PlacementPerRequest-v0`: which worker gets this request, as in Aladdin."""

from __future__ import annotations

from llmscale_env.envs.base import ServingEnv
from llmscale_env.envs.vector import ServingVectorEnv


class PlacementPerRequestEnv(ServingEnv):
    """A request has come: which of four workers gets it, or does it wait?

    - **Decided**, at every arrival: the worker that gets the first waiting request, or to wait.
    - **Seen**: that request, and each worker as it would be with the request on it.
    - **Paid**: late requests; the four GPUs are held all the time.
    - **Tension**: busy times bring more than four workers can serve in time. Evenly spread requests
      are then all a little late; packing keeps some on time.
    - **Leaderboard**: docs/leaderboard.md#placement-per-request.

    ## Description

    One of Aladdin's machines serves Llama-2-13b: four A100-80GB, each a worker of its own (its best
    degree for this LLM, Table 3).

    | requests | |
    |---|---|
    | lengths | ShareGPT, one turn |
    | targets | first token within 600 ms, then a token every 30 ms on average (Table 2) |
    | arrivals (ours) | 11.4 per second in busy times, 4.6 in quiet ones, of 30 s each on average |

    A placed request joins the end of the worker's queue and stays. A prefill stops all decoding
    there, so running requests lose time by which they are ahead of 30 ms per token.

    Decisions come at arrivals and every 5 s; while a request waits also one millisecond after a
    placement, else after 200 ms. No worker starts or stops. The simulation is exact to the token
    (docs/engine.md, section 13).

    ## Action Space

    `MultiDiscrete` with one part: where the waiting request that arrived first goes.

    - `rank-k` is the worker with the k-th fewest requests (ties by number), since workers are
      alike. A worker takes any number of requests.
    - Workers that do not serve come last. `action_masks()` masks them, and all if no request waits.
      To choose one is to wait, and counts in `info["clipped"]`.

    ## Observation Space

    `Box`, float32, on fixed scales. Workers are seen by rank, with the request on them; all is 0
    for one that does not serve. Times are Aladdin's linear models (Eq. 2 and 3), fitted to the
    iteration times. Entry 0 (block `clock`) shows the time left, which no service has.

    | entry | of Aladdin's programme | 0.5 is |
    |---|---|---|
    | `prefill` | (c): `c1 + k1 * tokens` over the prompts of its queue and this one | the target |
    | `decode` | (b): `c3 + c2 * requests + k2 * context` of all, `gamma` = 0 | the target |
    | `decode_end` | the same with all predicted outputs, `gamma` = 1 | the target |
    | `kv` | memory in use, needs of queued and preempted requests, this one's prompt | full |
    | `kv_end` | all inputs and predicted outputs at once, more than (e) asks | full |
    | `slack` | (d), right-hand side: least time ahead of running requests, over 600 ms | |

    `gamma` = 0 counts requests as they stand. Time ahead is
    `30 ms * tokens - time since the first token`.

    ## Rewards

    Minus the sum (`llmscale_env.control.reward`), until the next decision, of

    - `gpu`: GPU-seconds held over those of all four GPUs in 5 s, always 60 in an episode;
    - `violations`: 10 x the requests that became certain to miss a target (each once), over those
      *expected* in 5 s: some 0.25 each;
    - `loads`: nothing is started;
    - `leftover`: as `gpu`, for serving the unfinished requests one by one at the horizon.

    A violation is certain after 600 ms without a first token, and for the mean time per token at
    the end of the request.

    ## Starting State

    Four workers serve, without a request. The seed fixes all requests.

    ## Episode End

    Truncated after 300 s (some 2,500 decisions, more if requests wait), never terminated.

    ## Arguments

    - `scenario="placement-per-request"`: it needs `decisions: arrivals` and routes of kind `hold`;
    - `overrides={}`: such as `{"workload.rate_scale": 0.8}`. With
      `{"fleet.pools.worker.mtbf_s": 120.0}` workers fail at random; their requests are placed anew;
    - `forecaster`: not used, as decisions at arrivals have no forecast;

    All others are those of `ServingEnv`.

    Episodes of the vectorised form differ in the number and the times of their steps.

    ## Information

    `metrics` has `queue/gateway`, requests without a worker, in place of `queue/QUEUE`.

    Everything else is as `ServingEnv` has it.

    ## References

    Nie et al., "Aladdin: Joint Placement and Scaling for SLO-Aware LLM Serving" (2024). ShareGPT's
    lengths: docs/workloads.md.

    ## Version History

    - v0: first version. After 0.1.0 best fit counts running prefills and intervals between tokens.
    """

    scenario_name = "placement-per-request"
    observation = ("clock", "request", "workers")
    action = ("place_request",)


class PlacementPerRequestVectorEnv(ServingVectorEnv):
    """Many episodes of `llmscale/PlacementPerRequest-v0` in one call: see `PlacementPerRequestEnv`."""

    scenario_name = PlacementPerRequestEnv.scenario_name
    observation = PlacementPerRequestEnv.observation
    action = PlacementPerRequestEnv.action
