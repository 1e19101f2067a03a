"""`llmscale/MultiRegion-v1`: LLMs in several regions on spot VMs, as in SageServe."""

from __future__ import annotations

from llmscale_env.envs.base import ServingEnv
from llmscale_env.envs.vector import ServingVectorEnv


class MultiRegionEnv(ServingEnv):
    """Three regions, two LLMs, spot VMs: how many instances where, who serves whom, and what can wait?

    - **Decided**, every 15 minutes. Per endpoint (an LLM in a region): how many instances, and the rule
      that changes them until the next decision. Per region: its routing threshold, and where its clients
      are sent first. Per endpoint and queue: when it takes deferrable requests, which are those that can
      wait.
    - **Seen**: time of the week, load by LLM and region with forecasts, latencies, queues by slack,
      endpoints.
    - **Paid**: GPU-hours and late requests, in dollars; spot VMs are not billed.
    - **Tension**: to take a VM back takes a minute, or eleven if it has the other LLM. Load moves with the
      hour, the weekday and the region. Deferrable requests can fill quiet hours, but they are due in 2 to
      12 hours.
    - **Leaderboard**: docs/leaderboard.md#multi-region.

    ## Description

    Bloom-176B and Llama-2-70B are served from three US regions, each with 40 VMs of 8 A100-80GB. The day is
    any of SageServe's week, at its published rate.

    | requests | a day in the mean | due |
    |---|---|---|
    | interactive | 550,000 | first token within 60 s, then a token per second on average |
    | deferrable | 190,000; some 20,000 wait from the start, left by earlier work | within 2, 6 or 12 hours |

    What is published of that week is hourly. docs/worlds.md says what of the rest is measured,
    fitted or ours.

    A VM that no instance needs is leased out as a spot VM, which costs nothing here. To take back one that
    has the right LLM takes a minute (median; at most five); one with the other LLM takes ten minutes more.
    To give one back takes a minute. All of that is paid for.

    The global router sends an interactive request to the first region whose memory utilisation is below its
    threshold, in the order of the client's region. If there is none, it takes the least utilised region.
    Deferrable requests wait in a queue per LLM and deadline. An endpoint takes one or two of them per
    second while its utilisation is below two thresholds. A request taken after 10/24 of its time counts as
    interactive there. Utilisation is the memory that requests use, or will ask for while they wait at an
    instance, over what there is.

    Between decisions the cluster is simulated exactly to the token (docs/engine.md, section 17).

    ## Action Space

    `MultiDiscrete`. `action_masks()` and `info["action_mask"]` say which choices are possible now, each
    part by itself: two LLMs may still order the same VMs. An order that is impossible is clipped and
    counted in `info["clipped"]`, by instances.

    `POOL/instances` is a change of the number of instances (those on their way count), within what the
    pool's rule allows (`scaling.least`, `most`). Surplus instances finish their requests and become spot
    VMs of their LLM. Missing ones are reclaimed, own spot VMs first. Instances on their way are not called
    off.

    `POOL/rule` says what happens until the next decision:

    - `none`: the change is made at once, and nothing else happens (SageServe's LT-I).
    - `target`: the new number is a target. An instance goes or comes towards it when a request finds the
      endpoint's utilisation below 0.3 or above 0.7 (LT-U).
    - `reactive`: the change is made at once, then the endpoint follows its utilisation alone.

    The regions' parts are about routing:

    - `REGION/threshold`: utilisation below which the region takes requests in order of preference. With 0
      it takes them only if it is the least utilised one, with 1.1 always.
    - `REGION/first`: the region that its clients' requests try first. The others follow by latency, the own
      one first.

    | `QUEUE/REGION/release` | utilisation below which one deferrable request is taken | and two |
    |---|---|---|
    | `hold` | 0 | 0 |
    | `careful` | 0.4 | 0.3 |
    | `usual` (SageServe's) | 0.6 | 0.5 |
    | `eager` | 0.8 | 0.7 |

    ## Observation Space

    `Box`, float32, dimensionless, on fixed scales, clipped to its bounds. "Expected" is the mean of the
    scenario by LLM and region; an interval is the last one; tokens are input and predicted output tokens.
    `LLM/REGION` is about the clients of a region, wherever they are served, and `POOL` about the instances
    there. `load`, `trend` and forecasts are of interactive requests. A forecast is of a whole interval that
    ends so far ahead, by Holt-Winters with a season of a day, which knows the day before.

    ## Rewards

    Minus the dollars of the interval in units of 1000 $ (`llmscale_env.control.reward`), the sum of

    - `gpu`: 2.50 $ per GPU-hour, 20 $ per hour of a VM. VMs are held from when they are reclaimed until
      they have been given back; spot VMs are not billed;
    - `violations`: 0.1 $ per request that became certain to miss a target, three times that for an
      interactive one;
    - `loads`: nothing: the time that a start takes is billed;
    - `leftover`: at the horizon, the GPU time that serving the unfinished requests in a full batch would
      take. Deferrable requests that all VMs together could not serve in time are late.

    Each request is charged at most once, when its violation becomes certain. `info["reward_parts"]` has the
    four with their sign. docs/worlds.md derives the prices.

    ## Starting State

    Midnight (UTC) of a random day of the week. At every endpoint ten instances serve and ten VMs are leased
    out; rules are `reactive`. The backlog of deferrable requests is there. Forecasts know the requests of
    the day before, which were not simulated. Requests are drawn from `self.np_random`: one seed, one
    episode, whatever the agent does.

    ## Episode End

    Truncated after a day (96 decisions). There is no termination.

    ## Arguments

    - `scenario="multi-region"`: name, YAML file or `Scenario` (`sageserve-day` has four LLMs and a
      Tuesday). All pools need `spot` and `scaling`; the history must be a whole number of intervals;
    - `overrides={}`: its fields by dotted path, such as
      `{"workload.rate_scale": 0.5, "fleet.pools.*.scaling.high": 0.5}`;
    - `forecaster="ewma"`: what the block `forecast` would show, which is not among the default ones;

    All others are those of `ServingEnv`.

    ## One agent per region

    `MultiRegionParallelEnv` is the same as a PettingZoo parallel environment
    (`pip install 'llmscale[multiagent]'`):

    ```python
    from llmscale_env.envs import MultiRegionParallelEnv

    env = MultiRegionParallelEnv(overrides={"horizon_s": 3600, "workload.rate_scale": 0.1})
    observations, infos = env.reset(seed=0)
    while env.agents:
        actions = {agent: env.action_space(agent).sample() for agent in env.agents}
        observations, rewards, terminations, truncations, infos = env.step(actions)
    ```

    Agents are called like the regions. Each gets the whole cluster's reward.

    | of an agent | what it is |
    |---|---|
    | its action | the parts that name its region or its pools |
    | its observation, `sees="own"` | the entries that name them or none |
    | the same, `sees="all"` | all entries; `env.state()` gives these in any case |
    | `infos[agent]["costs"]` | its share of the reward's parts |
    | `infos[agent]["cost"]` | violations among its clients |
    | `infos[agent]["action_mask"]` | what is possible |
    | `env.observation_names[agent]`, `env.action_names[agent]` | names of its entries and parts |

    The share counts GPU time of its pools, and violations and leftover work of its clients. Over all agents
    the shares add up to the reward.

    ## Information

    Everything else is as `ServingEnv` has it.

    ## What is not as in SageServe

    Decisions come every 15 minutes, not every hour. LT-UA's rule for the end of the hour is not among the
    rules: it would begin anew with every decision. Three things are ours, and fixed in SageServe: a
    region's own threshold, another first region than the own one, and changing thresholds of the queue
    managers.

    ## References

    Jaiswal et al., "Serving Models, Fast and Slow: Optimizing Heterogeneous LLM Inferencing Workloads at
    Scale" (SageServe, 2025, arXiv 2502.14617).

    ## Version History

    - v1: a random day of the week at SageServe's rate, with its fleet (v0: a Tuesday at a quarter of both).
      Deferrable requests are due in 2 to 12 hours and some wait at the start. Prefill is chunked, prices
      are in dollars, and no entry shows the time left.
    - v0: first version. It is gone.
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
