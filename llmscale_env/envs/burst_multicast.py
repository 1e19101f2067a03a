"""`llmscale/BurstMulticast-v0`: bursts met by instances that load over the network, as in BlitzScale."""

from __future__ import annotations

from llmscale_env.envs.base import ServingEnv
from llmscale_env.envs.vector import ServingVectorEnv


class BurstMulticastEnv(ServingEnv):
    """Short bursts, split phases, weights over the network: how many instances, and who sends to whom?

    ## Description

    Llama-3.1-8B is served on up to 16 A100-80GB, four machines of four with the links of BlitzScale's
    cluster B (100 Gbps per GPU between machines, shared PCIe within one). Prefill and decode run on
    instances of their own; a request's KV cache goes from one to the other over the same links that weights
    take. Code-completion requests (prompts of some 2,000 tokens, answers of some 30, as in the Azure code
    trace) want their first token within 1 s and a token every 0.15 s on average. They come as in five
    minutes of that trace, from anywhere in it: 3.3 per second in the mean, in bursts of seconds with
    nothing between them; the trace's busiest second needs all GPUs. A prefill instance does some 5 per
    second. Machines and first target are ours (the scenario says why).

    Every second the agent sets how many prefill and decode instances there should be, and, for those
    that start now, from whom their weights come, in how many chains, whether prefill instances work while
    they load, and whether decode instances are made of prefill ones. Who exactly sends to whom is
    the scale planner's matter (BlitzScale's Algorithm 1, docs/multicast.md): in a chain each instance
    hands every layer on as soon as it has it. An instance serves after 1.3 s over a link of its own, 1.0 s
    from the memory of its own machine, 13 s from SSD; later if links are shared with KV caches or with
    other loads. Between decisions the cluster is simulated exactly to the token, flows of weights and KV
    caches included (docs/engine.md, sections 11, 12, 15 and 16).

    ## Action Space

    `MultiDiscrete`. An order that is impossible (more GPUs than there are) is clipped and counted
    in `info["clipped"]`; `action_masks()` and `info["action_mask"]` say which choices are possible
    now, each part for itself (pools may still want more GPUs together than there are).

    `POOL/instances`: how many the pool should have (acquiring, loading and active ones, and those that
    others are about to become). `weights/from`: `planner`: BlitzScale's own order, the instances that
    send nothing yet and the copy, by bandwidth; `decode` instances, which send no KV caches, so that
    nothing is in the way; `any` instance, the lowest numbers first, whatever it sends; `host`: the one
    copy that some machine's memory keeps (BlitzScale's parameter pool); `ssd`: the own machine's. What is
    not there gives way to any instance, then to the copy, then to SSD. `weights/chains`: only so many of
    the sources are used (of `planner` the widest that send nothing). `weights/live`: prefill instances
    that load help those with requests waiting, layer by layer (section 5.2 of the paper). `decode/by`:
    `mutate` turns prefill instances, the least busy first, into decode instances, with their weights and
    on their GPUs, once they have finished what they have; one prefill instance stays. Instances that
    start are those on machines of the copy first, then by number; a lower number stops instances that
    load, then the least busy.

    ## Observation Space

    `Box`, float32, dimensionless, on fixed scales, clipped to its bounds. "Expected" is the mean of the
    scenario; a window is the last control interval. `env.unwrapped.observation_entries` and
    `action_choices` list what the tables of docs/environments list.

    Entry 0 counts to the horizon, which no service has; `observation` without the block `clock` leaves it
    out. No other entry does (`tests/test_leaks.py`). To stop serving early does not pay all the same
    (`tests/test_anti_cheat_worlds.py`).

    ## Rewards

    Minus the cost of the interval (`llmscale_env.control.reward`), the sum of

    - `gpu`: GPU-seconds held (loading and draining included) over those of all 16 GPUs;
    - `violations`: 10 x the requests that became certain to miss a target (or were rejected) over
      the requests *expected* per interval;
    - `loads`: 0.02 per instance started (one that becomes another counts);
    - `leftover`: at the horizon, the GPU-seconds that serving the unfinished requests one by one
      would take, in the unit of `gpu`.

    Each request is charged at most once, when its violation becomes certain; dividing by expected
    arrivals leaves nothing to gain by serving fewer. `info["reward_parts"]` has the four with their
    sign.

    ## Starting State

    Two prefill and two decode instances serve, none is loading, nobody waits, the first machine's
    memory has the copy. The requests of the episode are drawn from `self.np_random`: one seed, one episode,
    whatever the agent does.

    ## Episode End

    Truncated after 300 s (300 decisions). There is no termination.

    ## Arguments

    - `scenario="burst-multicast"`: name, YAML file or `Scenario`. All pools need `weights: flow`;
      `weights/live` is there if a pool has `phase: prefill`, `decode/by` if it has a decode twin;
    - `overrides={}`: its fields by dotted path, such as `{"network": "blitzscale-a",
      "workload.rate_scale": 0.5}`;

    All others are those of `ServingEnv`.

    ## Information

    There are no shared queues.

    Everything else is as `ServingEnv` has it.

    ## What is not as in BlitzScale

    Decisions come every second, not whenever a load crosses a bound, and bursts may last only a few.
    Which slots start and which prefill instance becomes a decode one follows fixed rules of ours
    (docs/policies.md). There is one LLM.

    ## Reference Policies

    `python -m agents.evaluate env=burst-multicast episodes=20 policies=A,B,...`, means and 95 %
    intervals:

    | policy | reward | on time (%) | GPU-hours | TTFT p99 (s) |
    |---|---|---|---|---|
    | `static` (2 and 2) | -3615 [-4390, -2833] | 36.3 | 0.333 | 16 |
    | `static:prefill=12+decode=2` | -371 [-505, -277] | 98.0 | 1.17 | 1.02 |
    | `distserve` (all GPUs) | -325 [-361, -301] | 99.3 | 1.33 | 0.877 |
    | `distserve-half` | -442 [-691, -256] | 95.0 | 0.667 | 1.48 |
    | `serverlessllm` | -1278 [-1555, -1030] | 76.2 | 0.381 | 5.78 |
    | `blitzscale` | -486 [-569, -401] | 91.3 | 0.348 | 1.7 |
    | `blitzscale:base_over=busy` | -315 [-373, -262] | 95.6 | 0.48 | 1.32 |
    | `blitzscale:min_prefill=4+min_decode=1` | -218 [-273, -171] | 97.7 | 0.46 | 1.07 |

    The base fleet decides. `blitzscale` keeps the average number of instances required so far, which is one
    or two for prefill: no request comes in most seconds. `base_over=busy` averages over the seconds with
    load alone, and keeps three to four. Both are better with more than the paper's plain average, since a
    new instance serves after 1.0 to 1.3 s at best and the first token is due after 1 s. Best is a fixed base
    of four prefill instances, which no policy here learns: it meets the first seconds of a burst, and the
    rest scales, for under half of the GPU time of the fixed fleets.

    Other settings of `blitzscale`, some of them better than its default, stand in docs/policies.md.

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
