"""`llmscale/MultiRegion-v1`: LLMs in several regions on spot VMs, as in SageServe."""

from __future__ import annotations

from llmscale_env.envs.base import ServingEnv
from llmscale_env.envs.vector import ServingVectorEnv


class MultiRegionEnv(ServingEnv):
    """Three regions, two LLMs, spot VMs: how many instances where, who serves whom, what can wait?

    - **Decided**, every 15 minutes: instances and scaling rules of endpoints (an LLM in a region),
      routing of regions, release of deferrable requests.
    - **Seen**: time of the week, load and forecasts, latencies, queues, endpoints.
    - **Paid**: GPU-hours and late requests, in dollars; spot VMs are not billed.
    - **Tension**: load moves with hour, weekday and region, and a VM comes back after a minute, or
      eleven if it has the other LLM. Deferrable requests can fill quiet hours, but have deadlines.
    - **Leaderboard**: docs/leaderboard.md#multi-region.

    ## Description

    Three US regions, each with 40 VMs of 8 A100-80GB, serve Bloom-176B and Llama-2-70B on any day
    of SageServe's week, at its published hourly rates (sources: docs/worlds.md).

    | requests | a day in the mean | due |
    |---|---|---|
    | interactive | 550,000 | first token within 60 s, then a token per second on average |
    | deferrable | 190,000; some 20,000 wait from the start | within 2, 6 or 12 hours |

    VMs without an instance are spot VMs. The time of a change is billed:

    | change | takes |
    |---|---|
    | reclaim a spot VM with the right LLM | a minute (median; at most five) |
    | reclaim one with the other LLM | ten minutes more |
    | give a VM back | a minute |

    - An interactive request goes to the first region, in its client's order, with a utilisation
      below the region's threshold; else to the least utilised one.
    - Utilisation is memory in use, or needed by requests that wait at instances, over capacity.
    - Deferrable requests wait in a queue per LLM and deadline. An endpoint takes one or two per
      second while its utilisation is below two thresholds. After 10/24 of their time they count as
      interactive.

    The simulation is exact to the token (docs/engine.md, section 17).

    ## Action Space

    `MultiDiscrete`, with a mask per part (`action_masks()`). Instances that together need more VMs
    than there are get clipped (`info["clipped"]`).

    - `POOL/instances`: change of the number, within the pool's `scaling.least` and `most`.
      Instances on their way count, and are not called off. Surplus ones finish their requests and
      become spot VMs; missing ones reclaim spot VMs, own ones first.
    - `POOL/rule`, until the next decision: `none` makes the change at once (SageServe's LT-I), and
      so does `reactive`, which then follows utilisation. `target` adds or removes an instance
      towards the new number when a request finds utilisation above 0.7 or below 0.3 (LT-U).
    - `REGION/threshold`: utilisation below which the region takes requests. With 0 it takes them
      only as the least utilised one, with 1.1 always.
    - `REGION/first`: the region that its clients try first; the others follow by latency.

    | `QUEUE/REGION/release` | utilisation below which one deferrable request is taken | and two |
    |---|---|---|
    | `hold` | 0 | 0 |
    | `careful` | 0.4 | 0.3 |
    | `usual` (SageServe's) | 0.6 | 0.5 |
    | `eager` | 0.8 | 0.7 |

    ## Observation Space

    `Box`, float32, on fixed scales.

    - `LLM/REGION` is about clients of a region, wherever they are served, `POOL` about instances
      there.
    - `load`, `trend` and forecasts are of interactive requests, in input and predicted output
      tokens.
    - "Expected" is the scenario's mean by LLM and region; an interval is the last one.
    - A forecast (Holt-Winters, with the day before as history) is of an interval that ends so far
      ahead.

    ## Rewards

    Minus the dollars of the interval in units of 1000 $ (`llmscale_env.control.reward`):

    - `gpu`: 2.50 $ per GPU-hour (20 $ per VM-hour), from reclaiming a VM until it has been given
      back;
    - `violations`: 0.1 $ per request that became certain to miss a target (each once), three times
      that if interactive (docs/worlds.md derives it);
    - `loads`: nothing, as the time of a start is billed;
    - `leftover`: GPU time of serving the unfinished requests in a full batch, at the horizon.
      Deferrable ones that all VMs together could not serve in time are late.

    ## Starting State

    Midnight (UTC) of a random day of the week. Every endpoint has ten instances, ten spot VMs and
    the rule `reactive`. The seed fixes all requests.

    ## Episode End

    Truncated after a day (96 decisions), never terminated.

    ## Arguments

    - `scenario="multi-region"`: all pools need `spot` and `scaling`; the history must be a whole
      number of intervals. `sageserve-day` has four LLMs and a Tuesday;
    - `overrides={}`: such as `{"workload.rate_scale": 0.5, "fleet.pools.*.scaling.high": 0.5}`;
    - `forecaster="ewma"`: for the block `forecast`, which is not in the default observation;

    All others are those of `ServingEnv`.

    ## One agent per region

    As a PettingZoo parallel environment (`pip install 'llmscale[multiagent]'`):

    ```python
    from llmscale_env.envs import MultiRegionParallelEnv

    env = MultiRegionParallelEnv(overrides={"horizon_s": 3600, "workload.rate_scale": 0.1})
    observations, infos = env.reset(seed=0)
    while env.agents:
        actions = {agent: env.action_space(agent).sample() for agent in env.agents}
        observations, rewards, terminations, truncations, infos = env.step(actions)
    ```

    Agents have the regions' names, and each the whole cluster's reward.

    | of an agent | what it is |
    |---|---|
    | its action | the parts that name its region or its pools |
    | its observation, `sees="own"` | the entries that name them or none |
    | the same, `sees="all"` | all entries; `env.state()` gives these in any case |
    | `infos[agent]["costs"]` | its share of the reward's parts; the shares add up to the reward |
    | `infos[agent]["cost"]` | violations among its clients |
    | `infos[agent]["action_mask"]` | what is possible |
    | `env.observation_names[agent]`, `env.action_names[agent]` | names of its entries and parts |

    The share is of GPU time by pools, and of violations and leftover work by clients.

    ## Information

    Everything else is as `ServingEnv` has it.

    ## What is not as in SageServe

    - Decisions come every 15 minutes, not every hour, so LT-UA's rule for the end of an hour is
      left out.
    - Ours: choosing a region's threshold and first region, and the queue managers' thresholds.

    ## References

    Jaiswal et al., "Serving Models, Fast and Slow: Optimizing Heterogeneous LLM Inferencing
    Workloads at Scale" (SageServe, 2025, arXiv 2502.14617).

    ## Version History

    - v1: any day of the week at SageServe's rate, with its fleet; other deadlines, a backlog,
      chunked prefill, prices in dollars, no entry with the time left.
    - v0: a Tuesday at a quarter of rate and fleet. Removed.
    """

    scenario_name = "multi-region"
    observation = (
        "week_clock",
        "regional_load",
        "latency",
        "tails",
        "queues",
        "endpoints",
        "last_action",
    )
    action = ("endpoints", "regional_routing", "background_release")


class MultiRegionVectorEnv(ServingVectorEnv):
    """Many episodes of `llmscale/MultiRegion-v1` advanced in one call: see `MultiRegionEnv`."""

    scenario_name = MultiRegionEnv.scenario_name
    observation = MultiRegionEnv.observation
    action = MultiRegionEnv.action
