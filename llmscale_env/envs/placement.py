"""`llmscale/Placement-v1`: how many workers of which degree, and how requests find one, as in Aladdin."""

from __future__ import annotations

from llmscale_env.envs.base import ServingEnv
from llmscale_env.envs.vector import ServingVectorEnv


class PlacementEnv(ServingEnv):
    """Workers of one, two or four GPUs: how many of which, and which of them gets a request?

    - **Decided**, every 5 s: numbers of workers of each degree, the placement rule and its
      strictness.
    - **Seen**: arrivals and forecast, lengths, latencies, requests without a worker, workers.
    - **Paid**: GPU time, late requests and starts.
    - **Tension**: demand changes within minutes, and a worker serves 3.4 to 24 s after its order.
      Packing saves workers while the targets hold. No fixed fleet has 99 % on time.
    - **Leaderboard**: docs/leaderboard.md#placement.

    ## Description

    Up to 24 A100-80GB, in machines of four without NVLink, serve Llama-2-13b, as workers of one,
    two or four (tensor parallelism). The first token is due within 600 ms, then one every 30 ms on
    average (Aladdin's Table 2).

    | requests | lengths | rate |
    |---|---|---|
    | questions | ShareGPT, one turn | like a day of ten minutes, 2.4/s to 21.6/s |
    | conversations | prompts of all turns, up to 2,048 tokens | 6/s for 90 s, 0 for 90 s (means) |
    | together | | 15/s in the mean |

    Fleet, rates and the 2,048 tokens are ours (docs/worlds.md).

    | GPUs | requests of 370 tokens within 30 ms per token | GPU-milliseconds per prompt token |
    |---|---|---|
    | 1 | 57 | 0.12 |
    | 2 | 71 | 0.27 |
    | 4 | 115 | 0.56 |

    So workers of one GPU serve most per GPU, as in the paper's Table 3. A prefill stops all
    decoding on its worker; larger workers shorten it.

    | weights from | a worker serves after |
    |---|---|
    | host memory, if the machine had a worker of the pool in the last 300 s | 3.4 to 4.6 s |
    | SSD | 8 to 24 s: four GPUs load four times as fast as one |

    A worker that is given up is charged until its running requests are finished. The simulation is
    exact to the token (docs/engine.md, sections 6 and 14).

    ## Action Space

    `MultiDiscrete`, with a mask per part (`action_masks()`). Orders that together need more GPUs
    than there are get clipped (`info["clipped"]`).

    - `POOL/instances`: workers wanted in the pool (acquiring, loading and active).
    - `rule`: for arrivals from now on. `jsq-requests` takes the shortest queue, `power-of-two` the
      shorter of two, `least-kv` the largest share of KV memory left.
    - `gamma`: share of the predicted output that `best-fit` counts as context. With 0 the first
      iteration meets the target, with 1 the last one too.
    - `theta`: share of the slack that `best-fit` may use; above 1 more than the model allows.

    Best fit (section 4.2, Algorithm 1) has linear times fitted to a worker's degree. A request that
    no worker may take waits for the next decision; with `fallback: least` the emptiest worker gets
    it.

    ## Observation Space

    `Box`, float32, on fixed scales. "Expected" is the scenario's mean; an interval is the last one.
    Entry 0 (block `clock`) shows the time left, which no service has.

    ## Rewards

    Minus the sum (`llmscale_env.control.reward`) of

    - `gpu`: GPU-seconds held (loading and draining included) over those of all 24 GPUs;
    - `violations`: 10 x requests that became certain to miss a target (each once), or were
      rejected, over those *expected* per interval;
    - `loads`: 0.02 per worker started;
    - `leftover`: as `gpu`, for serving the unfinished requests one by one at the horizon.

    ## Starting State

    Twelve workers of one GPU serve. The seed fixes all requests.

    ## Episode End

    Truncated after 900 s (180 decisions), never terminated.

    ## Arguments

    - `scenario="placement"`: every route needs pools; `best-fit`, `gamma` and `theta` exist if
      every route has a `placement`;
    - `overrides={}`: such as `{"fleet.max_gpus": 16, "workload.rate_scale": 0.5}`;

    All others are those of `ServingEnv`.

    ## Information

    `metrics` has `queue/gateway`, requests without a worker, in place of `queue/QUEUE`.

    Everything else is as `ServingEnv` has it.

    ## What is not as in Aladdin

    - Algorithm 1 opens a worker for a request that no worker may take. Here the agent orders
      workers.
    - Requests are placed at arrival, not at the heartbeat, and stay (Algorithm 2 is for policies:
      `Command.assign`).
    - The three pools have machines of their own.

    ## References

    Nie et al., "Aladdin: Joint Placement and Scaling for SLO-Aware LLM Serving" (2024). ShareGPT's
    lengths: docs/workloads.md.

    ## Version History

    - v1: no NVLink, conversations, requests that no worker may take wait. Figures do not compare
      with those of v0.
    - v0: NVLink, 25 short questions per second, `fallback: least`. After 0.1.0 best fit counts
      running prefills and intervals between tokens.
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
