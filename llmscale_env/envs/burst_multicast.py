"""`llmscale/BurstMulticast-v0`: bursts met by instances that load over the network, as in BlitzScale."""

from __future__ import annotations

from llmscale_env.envs.base import ServingEnv
from llmscale_env.envs.vector import ServingVectorEnv


class BurstMulticastEnv(ServingEnv):
    """Short bursts, split phases, weights over the network: how many instances, who sends to whom?

    - **Decided**, every second: prefill and decode instances, and the source of their weights.
    - **Seen**: arrivals and forecast, latencies, instances, layers loaded, use of the links.
    - **Paid**: GPU time, late requests and starts.
    - **Tension**: bursts last seconds. A new instance serves after 1.0 s at best, when the first
      token is due, so a base fleet has to meet a burst. Weights and KV caches share the links.
    - **Leaderboard**: docs/leaderboard.md#burst-multicast.

    ## Description

    Up to 16 A100-80GB serve Llama-3.1-8B: four machines of four, with the links of BlitzScale's
    cluster B (100 Gbps per GPU between machines, shared PCIe within one). Prefill and decode have
    instances of their own.

    | requests | |
    |---|---|
    | kind | code completion: prompts of some 2,000 tokens, answers of some 30 |
    | targets | first token within 1 s, then a token every 0.15 s on average |
    | arrivals | any five minutes of the Azure code trace: bursts, 3.3 per second in the mean |
    | peak | the busiest second needs all GPUs; a prefill instance serves some 5 per second |

    Machines and the TTFT target are ours (docs/worlds.md).

    BlitzScale's scale planner (Algorithm 1, docs/multicast.md) forms chains of instances that hand
    on every layer at once. On links that are not shared:

    | weights from | an instance serves after |
    |---|---|
    | a link of its own | 1.3 s |
    | the memory of its own machine | 1.0 s |
    | SSD | 13 s |

    The simulation is exact to the token, flows included (docs/engine.md, sections 11, 12, 15 and
    16).

    ## Action Space

    `MultiDiscrete`, with a mask per part (`action_masks()`). Orders that together need more GPUs
    than there are get clipped (`info["clipped"]`).

    - `POOL/instances`: wanted in the pool (acquiring, loading and active, or about to become one).
    - `weights/chains`: how many sources are used (of `planner` the widest that send nothing).
    - `weights/live`: loading prefill instances help those with requests waiting, layer by layer
      (the paper's section 5.2).
    - `decode/by`: with `mutate` the least busy prefill instances finish their requests and become
      decode instances, with their weights. One prefill instance stays.

    | `weights/from` | source |
    |---|---|
    | `planner` | BlitzScale's order: instances that send nothing yet, and the copy, by bandwidth |
    | `decode` | decode instances, which send no KV caches |
    | `any` | any instance, lowest numbers first, whatever it sends |
    | `host` | the one copy in some machine's memory (BlitzScale's parameter pool) |
    | `ssd` | the own machine's SSD |

    A source that is not there gives way to any instance, then the copy, then SSD. Instances on the
    copy's machine start first, then by number. Loading ones stop first, then the least busy.

    ## Observation Space

    `Box`, float32, on fixed scales. "Expected" is the scenario's mean; an interval is the last one.
    Entry 0 (block `clock`) shows the time left, which no service has.

    ## Rewards

    Minus the sum (`llmscale_env.control.reward`) of

    - `gpu`: GPU-seconds held (loading and draining included) over those of all 16 GPUs;
    - `violations`: 10 x requests that became certain to miss a target (each once), or were
      rejected, over those *expected* per interval;
    - `loads`: 0.02 per instance started (one that becomes another counts);
    - `leftover`: as `gpu`, for serving the unfinished requests one by one at the horizon.

    ## Starting State

    Two prefill and two decode instances serve, and the first machine's memory has the copy. The
    seed fixes all requests.

    ## Episode End

    Truncated after 300 s (300 decisions), never terminated.

    ## Arguments

    - `scenario="burst-multicast"`: all pools need `weights: flow`. `weights/live` needs a pool with
      `phase: prefill`, and `decode/by` its decode twin;
    - `overrides={}`: such as `{"network": "blitzscale-a", "workload.rate_scale": 0.5}`;

    All others are those of `ServingEnv`.

    ## Information

    There are no shared queues.

    Everything else is as `ServingEnv` has it.

    ## What is not as in BlitzScale

    - Decisions come every second, not whenever a load crosses a bound. There is one LLM.
    - Rules of ours choose which slots start and which instances mutate (docs/policies.md).

    ## The base fleet

    `blitzscale` keeps the average number of instances required so far, which is one or two for
    prefill. `base_over=busy` keeps three to four and does better, `min_prefill=4` still better
    (docs/policies.md; tails of TTFT in docs/appendix.md).

    ## References

    Zhang et al., "Fast and Live Model Auto Scaling with O(1) Host Caching" (BlitzScale, 2024).
    Azure LLM inference traces 2023: Patel et al., "Splitwise" (ISCA 2024), CC-BY 4.0.

    ## Version History

    - v0: first version.
    """

    scenario_name = "burst-multicast"
    observation = (
        "clock",
        "arrivals",
        "forecast",
        "lengths",
        "latency",
        "gateway",
        "fleet",
        "weights",
        "links",
        "last_action",
    )
    action = ("multicast",)


class BurstMulticastVectorEnv(ServingVectorEnv):
    """Many episodes of `llmscale/BurstMulticast-v0` advanced in one call: see `BurstMulticastEnv`."""

    scenario_name = BurstMulticastEnv.scenario_name
    observation = BurstMulticastEnv.observation
    action = BurstMulticastEnv.action
