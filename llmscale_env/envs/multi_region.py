"""`llmscale/MultiRegion-v1`: LLMs in several regions on spot VMs, as in SageServe."""

from __future__ import annotations

from llmscale_env.envs.base import ServingEnv
from llmscale_env.envs.vector import ServingVectorEnv


class MultiRegionEnv(ServingEnv):
    """Three regions, two LLMs, spot VMs: how many instances where, who serves whom, and what can wait?

    ## Description

    Bloom-176B and Llama-2-70B are served from three US regions, each with 40 VMs of 8 A100-80GB. The day is
    any of SageServe's week, at its published rate. In the mean it brings some 550,000 interactive requests (a
    first token within 60 s, then a token per second on average) and 190,000 that can wait for 2, 6 or 12
    hours. Some 20,000 of these wait from the start, left by earlier work. What is published of that week
    is hourly; docs/worlds.md says what of the rest is measured, fitted or ours.

    A VM that no instance needs is leased out as a spot VM, which costs nothing here. To take back one
    that has the right LLM takes a minute (median; at most five), one with the other LLM ten minutes more.
    To give one back takes a minute. All of that is paid for.

    The global router sends an interactive request to the first region whose memory utilisation is below its
    threshold, in the order of the client's region; else to the least utilised one. Requests that can wait lie
    in a queue per LLM and deadline. From it an endpoint (an LLM in a region) takes one or two per second
    while its utilisation is below two thresholds. One that it takes after 10/24 of its time counts as
    interactive there. Utilisation is the memory that requests use, or will ask for while they wait at an
    instance, over what there is.

    Every 15 minutes the agent sets for every endpoint how many instances there are to be, and by which rule
    that goes on until the next decision. For every region it sets the threshold, and where its clients are
    sent first; for every endpoint and queue, when it takes what can wait. Between decisions the cluster is
    simulated exactly to the token (docs/engine.md, section 17).

    ## Action Space

    `MultiDiscrete`. An order that is impossible is clipped and counted in `info["clipped"]`, by instances;
    `action_masks()` and `info["action_mask"]` say which choices are possible now, each part for itself (two
    LLMs may still want the same VMs).

    `POOL/instances`: change of the number of instances (those on their way count), within what the pool's
    rule allows (`scaling.least`, `most`). What is too much serves its requests to the end and becomes a spot
    VM of its LLM; what is missing is reclaimed, own spot VMs first. Instances on their way are not called
    off. `POOL/rule`: spot donation until the next decision. `none`: the change is made at once, and nothing
    else happens (SageServe's LT-I). `target`: the new number is a target, towards which an instance goes
    or comes when a request finds the endpoint's utilisation below 0.3 or above 0.7 (LT-U). `reactive`: the
    change is made at once, then the endpoint goes by its utilisation alone.

    `REGION/threshold`: utilisation below which the region takes requests in order of preference; with 0 only
    if it is the least utilised one, with 1.1 always. `REGION/first`: the region that its clients' requests
    try first; the others follow by latency, the own one first.

    `QUEUE/REGION/release`: utilisations below which the endpoint takes one request that can wait, and two,
    at every signal: `hold` 0 and 0, `careful` 0.4 and 0.3, `usual` 0.6 and 0.5 (SageServe's), `eager` 0.8
    and 0.7.

    ## Observation Space

    `Box`, float32, dimensionless, on fixed scales, clipped to its bounds. "Expected" is the mean of the
    scenario by LLM and region; an interval is the last one; tokens are input and predicted output
    tokens. `LLM/REGION` is about the clients of a region, wherever they are served, `POOL` about who
    serves there; `load`, `trend` and forecasts are of interactive requests. Forecasts are of a whole
    interval that ends so far ahead, by Holt-Winters with a season of a day, which knows the day before.
    `env.unwrapped.observation_entries` and `action_choices` list what the tables of docs/environments
    list.

    ## Rewards

    Minus the dollars of the interval in units of 1000 $ (`llmscale_env.control.reward`), the sum of

    - `gpu`: 2.50 $ per GPU-hour, 20 $ per hour of a VM. VMs are held from the moment at which they are
      reclaimed until they have been given back; spot VMs are not billed;
    - `violations`: 0.1 $ per request that became certain to miss a target, three times that for an
      interactive one;
    - `loads`: nothing: the time that a start takes is billed;
    - `leftover`: at the horizon, the GPU time that serving the unfinished requests in a full batch would
      take. Of those that can wait, the ones that all VMs together could not serve in time are late.

    Each request is charged at most once, when its violation becomes certain. `info["reward_parts"]` has the
    four with their sign. docs/worlds.md derives the prices.

    ## Starting State

    Midnight (UTC) of a random day of the week: at every endpoint ten instances serve and ten VMs are leased
    out, and the backlog of requests that can wait is there; rules are `reactive`. The requests of the day
    before are known (of the forecasts), nobody served them. The requests of the episode are drawn from
    `self.np_random`: one seed, one episode, whatever the agent does.

    ## Episode End

    Truncated after a day (96 decisions). There is no termination.

    ## Arguments

    - `scenario="multi-region"`: name, YAML file or `Scenario` (`sageserve-day` has four LLMs and a Tuesday).
      All pools need `spot` and `scaling`; the history must be a whole number of intervals;
    - `overrides={}`: its fields by dotted path, such as `{"workload.rate_scale": 0.5,
      "fleet.pools.*.scaling.high": 0.5}`;
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

    Agents are called like the regions. Each has the parts of the action that name its region or its pools,
    sees the entries that name them or none (`sees="own"`) or all of them (`sees="all"`; `env.state()` gives
    these in any case), and gets the whole cluster's reward. `infos[agent]["costs"]` has its own share of the
    reward's parts: GPU time of its pools, violations and work left over of its clients; over all agents they
    add up to the reward. `infos[agent]["cost"]` is the number of violations among its clients,
    `infos[agent]["action_mask"]` says what is possible. `env.observation_names[agent]` and
    `env.action_names[agent]` name an agent's entries and parts.

    ## Information

    Everything else is as `ServingEnv` has it.

    ## What is not as in SageServe

    Decisions come every 15 minutes, not every hour. LT-UA's rule for the end of the hour is not among the
    rules: it would begin anew with every decision. A region's own threshold, another first region than
    the own one, and thresholds of the queue managers that change are ours; there they are fixed.

    ## Reference Policies

    docs/leaderboard.md has all of them at their best, by `python -m experiments.worlds env=multi-region`.

    ## References

    Jaiswal et al., "Serving Models, Fast and Slow: Optimizing Heterogeneous LLM Inferencing Workloads at
    Scale" (SageServe, 2025, arXiv 2502.14617).

    ## Version History

    - v1: a random day of the week, SageServe's rate and fleet (v0: a Tuesday at a quarter of both), requests
      that can wait are due in 2 to 12 hours and some wait at the start, chunked prefill, prices in dollars,
      no entry that counts to the horizon.
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
