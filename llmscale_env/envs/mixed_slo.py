"""`llmscale/MixedSLO-v1` and its shorter forms: one cluster, interactive and batch requests, real days."""

from __future__ import annotations

from typing import Any

from llmscale_env.control.reward import expected_arrivals
from llmscale_env.envs.base import ServingEnv, ServingVectorEnv


class MixedSLOEnv(ServingEnv):
    """A day of an LLM service: how many instances, of which kind, how full, from midnight to midnight?

    ## Description

    One LLM (Llama-3.1-8B) is served on up to 16 A100-80GB with what vLLM V1 does by default (chunked prefill
    of 2,048 tokens, a KV watermark of 1 %). Four kinds of requests arrive:

    - *chat* (42 requests/s in the mean, ShareGPT lengths) and *code* (3.6/s, Azure's lengths) are
      interactive: first token within 10 s, a token every 0.2 s on average. Their rates are those of real
      days of two services (ServeGen), ten minutes by ten minutes, and within these the seconds of the
      Azure traces of 2023;
    - *documents* (1.5/s) all day, first token within an hour;
    - *jobs*: twelve a day of 4,000 to 10,000 requests at once, at any hour, with one to eight hours.

    A seed draws the day. Days differ in level (0.5 to 1.4 of the mean) and shape, and the policy is not told
    which one it has; it knows the day before. Days 1 to 8 are the default. `workload="mixed-slo/validation"`
    has days 9 and 10 and `workload="mixed-slo/test"` days 11 to 14. The busiest ten minutes of the training
    days need about 13 of the 16 GPUs. docs/worlds.md has the source of every number.

    As in Chiron (section 3) there are three pools: *interactive* and *batch* instances serve one kind,
    *mixed* ones both. Interactive requests go to interactive instances that have room, else to mixed ones,
    where they evict batch requests (KV cache saved to host memory, restored later). Batch requests wait in
    shared queues, one per deadline, from which batch and mixed instances take the earliest due first.

    Every 30 s the agent changes instance counts, batch limits, the share of interactive requests that
    tries the mixed pool first, and where new instances load weights from. An instance ordered now serves
    about 40 s later: 24 s of engine start and 16 s of weights from SSD (4 s from host memory or from a
    serving instance). Between decisions the cluster is simulated exactly to the token, on measured A100
    iteration times (docs/engine.md, docs/calibration.md).

    ## Action Space

    `MultiDiscrete`. An order that is impossible (more GPUs than there are) is clipped and counted in
    `info["clipped"]`; `action_masks()` and `info["action_mask"]` say which choices are possible now, each
    part for itself (pools may still want more GPUs together than there are).

@ACTIONS@

    `instances`: how many the pool should have (acquiring, loading and active ones). `batch_limit`: running
    requests allowed per instance. `overflow_share`: share of interactive requests that tries the mixed pool
    first. `load_source`: a source that is not there (no serving instance, no copy in host memory) gives
    way to the next slower one.

    ## Observation Space

    `Box`, float32, dimensionless, on fixed scales, clipped to its bounds. Load and work are in instances
    that they keep busy over the most that the GPUs allow. No entry tells how far the horizon is.

@ENTRIES@

    ## Rewards

    Minus dollars, in units of 20 $ (`llmscale_env.control.reward`), the sum of

    - `gpu`: 2.50 $ per GPU-hour held, loading and draining included;
    - `violations`: 0.002 $ per request that became certain to miss a target, or was rejected;
    - `loads`: nothing;
    - `leftover`: at the horizon, what serving the unfinished requests takes in a full batch. Interactive
      requests without a token, and batch requests that all GPUs together could no longer serve in time,
      are late. Batch requests that could are counted in no share.

    docs/worlds.md derives the price of a late request. `info["reward_parts"]` has the four with their sign.
    Nobody gains by not doing the work (`tests/test_anti_cheat_day.py`).

    ## Starting State

    3 interactive and 3 mixed instances serve, none is loading. Batch work of jobs that came before, and is
    not due yet, waits. The requests of the episode are drawn from `self.np_random`: one seed, one episode,
    whatever the agent does.

    ## Episode End

    Truncated after 24 hours (2,880 decisions). There is no termination.

    ## Arguments

    - `scenario="mixed-slo"`: name, YAML file or `Scenario`;
    - `overrides={}`: its fields by dotted path, such as `{"workload": "mixed-slo/test"}`;
    - `observation`, `action`: names of blocks (`llmscale_env.envs.observations.BLOCKS`) and heads
      (`llmscale_env.envs.actions.HEADS`) in place of the default ones;
    - `forecaster="ewma"`: what the forecast entries show (`llmscale_env.control.forecast`);
    - `reference`: a policy whose instance counts the head `residual` multiplies; `shaping`: weight of a term
      of the reward for requests that will be late (docs/forms.md);
    - `render_mode`: "ansi" (a table of the cluster now) or "rgb_array" (arrivals, queues, instances and
      attainment over the episode so far).

    The vectorised form (`gym.make_vec(..., vectorization_mode="vector_entry_point")`) takes
    `num_envs` and `threads` besides, advances all episodes in one call, and resets a finished one in
    the same step. Episode `e` of it equals a single environment reset with `seed + e`.

    ## Information

    - `metrics`: of the episode so far: `CLASS/slo_attainment`, `CLASS/violations`, `CLASS/arrived`, the
      same of the group `batch`, `joint/slo_attainment`, `gpu_hours`, `loads`, `preemptions`, `evictions`,
      `POOL/active`, `POOL/loading`, `POOL/running`, `POOL/waiting`, `POOL/batch_limit`, `queue/QUEUE`,
      `reward`;
    - `reward_parts`, `clipped`, `action_mask`: see above;
    - `cost`: violations of the interval, for constrained RL, and `cost_by_class`;
    - `episode_summary`: the metrics at the end of an episode.

    `set_weights(gpu=, violations=, loads=)` moves the weights of the reward's parts;
    `save_state()`, `restore_state(saved)` and `fork()` copy an episode in progress; `view()` shows it
    as a handwritten policy sees it.

    ## References

    Patke et al., "Hierarchical autoscaling for large language model serving with Chiron" (2025).
    Xiang et al., "ServeGen" (arXiv 2505.09999), rates under Apache-2.0. Azure LLM inference traces 2023:
    Patel et al., "Splitwise" (ISCA 2024), CC-BY 4.0.

    ## Version History

    - v1: a real day in place of half an hour (v0), prices in dollars, chunked prefill, today's start times.
    """

    scenario_name = "mixed-slo"
    observation = ("day_clock", "load", "deferrable", "felt", "pools", "last_action")
    action = ("instance_counts", "batch_limits", "routing_share", "loading")


class MixedSLOVectorEnv(ServingVectorEnv):
    """Many episodes of `llmscale/MixedSLO-v1` advanced in one call: see `MixedSLOEnv`."""

    scenario_name = MixedSLOEnv.scenario_name
    observation = MixedSLOEnv.observation
    action = MixedSLOEnv.action


class MixedSLOHoursEnv(MixedSLOEnv):
    """Two hours of `MixedSLO-v1`, from any time of day: 240 decisions, the same spaces and prices.

    What is learned on it runs on whole days.
    """

    scenario_name = "mixed-slo-hours"


class MixedSLOHoursVectorEnv(MixedSLOVectorEnv):
    """Many episodes of `llmscale/MixedSLO-Hours-v1` advanced in one call."""

    scenario_name = MixedSLOHoursEnv.scenario_name


class MixedSLOBurstyEnv(MixedSLOEnv):
    """Two hours in which the code service, with the bursts of its trace, asks for most of the work."""

    scenario_name = "mixed-slo-bursty"


class MixedSLOBurstyVectorEnv(MixedSLOVectorEnv):
    """Many episodes of `llmscale/MixedSLO-Bursty-v1` advanced in one call."""

    scenario_name = MixedSLOBurstyEnv.scenario_name


class MixedSLOLargeEnv(MixedSLOEnv):
    """The day of `MixedSLO-v1` with 50 GPUs and 3.125 times its load."""

    scenario_name = "mixed-slo-large"


class MixedSLOLargeVectorEnv(MixedSLOVectorEnv):
    """Many episodes of `llmscale/MixedSLO-Large-v1` advanced in one call."""

    scenario_name = MixedSLOLargeEnv.scenario_name


BUDGET_SHARE = 0.01
"""Share of the expected requests that may be late in the constrained form: Chiron's target is 99 %."""


class MixedSLOConstrainedEnv(MixedSLOHoursEnv):
    """Two hours of `MixedSLO-v1` whose reward is GPU cost alone; late requests are a cost with a budget.

    `info["cost"]` has the requests that became late in the interval, `info["cost_budget"]` (and
    `cost_budget`) how many may in an episode: 1 % of those expected.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.set_weights(violations=0.0)
        self.cost_budget = BUDGET_SHARE * sum(expected_arrivals(self.scenario))

    def _info(self, parts: dict[str, float], clipped: int = 0) -> dict[str, Any]:
        return {**super()._info(parts, clipped), "cost_budget": self.cost_budget}


class MixedSLOConstrainedVectorEnv(MixedSLOHoursVectorEnv):
    """Many episodes of `llmscale/MixedSLO-Constrained-v1` advanced in one call."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.set_weights(violations=0.0)
        self.cost_budget = BUDGET_SHARE * sum(expected_arrivals(self.scenario))
