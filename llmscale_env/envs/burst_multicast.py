"""`llmscale/BurstMulticast-v0`: bursts met by instances that load over the network, as in BlitzScale."""

from __future__ import annotations

from llmscale_env.envs.base import ServingEnv
from llmscale_env.envs.vector import ServingVectorEnv


class BurstMulticastEnv(ServingEnv):
    """Short bursts, split phases, weights over the network: how many instances, and who sends to whom?

    - **Decided**, every second: how many prefill and decode instances. For those that start now: from whom
      their weights come, in how many chains, whether prefill instances work while they load, and whether
      decode instances are made of prefill ones.
    - **Seen**: arrivals and their forecast, latencies, instances by state, layers that have come, use of
      the links.
    - **Paid**: GPU time, late requests and starts.
    - **Tension**: bursts last seconds, with nothing between them. A new instance serves after 1.0 to 1.3 s
      at best, and the first token is due after 1 s. So a base fleet has to meet the first seconds of a
      burst, and to hold it costs GPU time. Links are shared: weights slow down KV caches and each other.
    - **Leaderboard**: docs/leaderboard.md#burst-multicast.

    ## Description

    Llama-3.1-8B is served on up to 16 A100-80GB. They are four machines of four, with the links of
    BlitzScale's cluster B: 100 Gbps per GPU between machines, shared PCIe within one. Prefill and decode
    run on instances of their own. A request's KV cache goes from one to the other over the links that
    weights take.

    Requests are code completion: prompts of some 2,000 tokens and answers of some 30, as in the Azure code
    trace. The first token is due within 1 s, then a token every 0.15 s on average. They come as in five
    minutes of that trace, from anywhere in it: 3.3 per second in the mean, in bursts. The trace's busiest
    second needs all GPUs. A prefill instance serves some 5 per second. Machines and the TTFT target are
    ours (docs/worlds.md).

    BlitzScale's scale planner (Algorithm 1, docs/multicast.md) decides who exactly sends to
    whom. In a chain each instance hands every layer on as soon as it has it.

    | weights from | an instance serves after |
    |---|---|
    | a link of its own | 1.3 s |
    | the memory of its own machine | 1.0 s |
    | SSD | 13 s |

    It takes longer if links are shared with KV caches or other loads. Between decisions the cluster is
    simulated exactly to the token, flows of weights and KV caches included (docs/engine.md,
    sections 11, 12, 15 and 16).

    ## Action Space

    `MultiDiscrete`. `action_masks()` and `info["action_mask"]` say which choices are possible now, each
    part by itself: together, pools may still order more GPUs than there are. Such an order is clipped and
    counted in `info["clipped"]`.

    - `POOL/instances`: how many the pool should have: acquiring, loading and active ones, and those that
      others are about to become.
    - `weights/chains`: only so many of the sources are used (of `planner` the widest that send nothing).
    - `weights/live`: prefill instances that load help those with requests waiting, layer by layer (the
      paper's section 5.2).
    - `decode/by`: `mutate` turns prefill instances into decode instances, with their weights and on their
      GPUs. The least busy come first, once they have finished what they have. One prefill instance stays.

    | `weights/from` | source |
    |---|---|
    | `planner` | BlitzScale's own order: instances that send nothing yet, and the copy, by bandwidth |
    | `decode` | decode instances: they send no KV caches, so nothing is in the way |
    | `any` | any instance, lowest numbers first, whatever it sends |
    | `host` | the one copy in some machine's memory (BlitzScale's parameter pool) |
    | `ssd` | the own machine's SSD |

    A source that is not there gives way to any instance, then to the copy, then to SSD. Instances on
    machines of the copy start first, then by number. A lower number stops instances that load, then the
    least busy.

    ## Observation Space

    `Box`, float32, dimensionless, on fixed scales, clipped to its bounds. "Expected" is the mean of the
    scenario; a window is the last control interval. Entry 0 shows the time left, which no service has;
    `observation` without the block `clock` omits it. No other entry does (`tests/test_leaks.py`). Even so,
    to stop serving early does not pay (`tests/test_anti_cheat_worlds.py`).

    ## Rewards

    Minus the cost of the interval (`llmscale_env.control.reward`), the sum of

    - `gpu`: GPU-seconds held (loading and draining included) over those of all 16 GPUs;
    - `violations`: 10 x the requests that became certain to miss a target (or were rejected) over the
      requests *expected* per interval;
    - `loads`: 0.02 per instance started (one that becomes another counts);
    - `leftover`: at the horizon, the GPU-seconds that serving the unfinished requests one by one would
      take, in the unit of `gpu`.

    Each request is charged at most once, when its violation becomes certain. Division by expected arrivals
    leaves nothing to gain by serving fewer. `info["reward_parts"]` has the four with their sign.

    ## Starting State

    Two prefill and two decode instances serve, none is loading, no request waits, and the first machine's
    memory has the copy. Requests are drawn from `self.np_random`: one seed, one episode, whatever the agent
    does.

    ## Episode End

    Truncated after 300 s (300 decisions). There is no termination.

    ## Arguments

    - `scenario="burst-multicast"`: name, YAML file or `Scenario`. All pools need `weights: flow`.
      `weights/live` exists if a pool has `phase: prefill`, and `decode/by` if it has a decode twin;
    - `overrides={}`: its fields by dotted path, such as
      `{"network": "blitzscale-a", "workload.rate_scale": 0.5}`;

    All others are those of `ServingEnv`.

    ## Information

    There are no shared queues.

    Everything else is as `ServingEnv` has it.

    ## What is not as in BlitzScale

    Decisions come every second, not whenever a load crosses a bound, and bursts may last only a few. Fixed
    rules of ours choose the slots that start and the prefill instance that becomes a decode one
    (docs/policies.md). There is one LLM.

    ## The base fleet

    `blitzscale` keeps the average number of instances required so far. For prefill that is one or two,
    since most seconds bring no request. `base_over=busy` averages over the seconds with load alone, and
    keeps three to four. A fixed base of four prefill instances (`min_prefill=4`) does better than both, for
    under half of the GPU time of the fixed fleets. No policy here learns that base.
    docs/policies.md has other settings; docs/appendix.md has the tails of TTFT.

    ## References

    Zhang et al., "Fast and Live Model Auto Scaling with O(1) Host Caching" (BlitzScale, 2024). Azure LLM
    inference traces 2023: Patel et al., "Splitwise" (ISCA 2024), CC-BY 4.0.

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
