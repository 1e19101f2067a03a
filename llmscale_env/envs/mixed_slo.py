"""`llmscale/MixedSLO-v1` and its shorter forms: one cluster, interactive and batch requests, real days."""

from __future__ import annotations

from typing import Any

from llmscale_env.control.reward import expected_arrivals
from llmscale_env.envs.base import ServingEnv
from llmscale_env.envs.vector import ServingVectorEnv


class MixedSLOEnv(ServingEnv):
    """A day of an LLM service: how many instances, of which kind, how full, from midnight to midnight?

    - **Decided**, every 30 s: instances of three pools, their batch limits, the share of interactive
      requests that tries the mixed pool first, and the source of weights for new instances.
    - **Seen**: load now, yesterday and as forecast; waiting work by deadline; latencies; the state of each
      pool.
    - **Paid**: GPU-hours and late requests, in dollars.
    - **Tension**: an instance serves 40 s after its order, and the policy does not know which day it has.
      The peak of a day is 1.2 to 2.7 times its mean, so a fleet for the peak is partly idle. Batch requests
      can wait for quiet times, but not beyond their deadlines.
    - **Leaderboard**: docs/leaderboard.md#mixed-slo.

    ## Description

    One LLM (Llama-3.1-8B) is served on up to 16 A100-80GB. Prefill is chunked by 2,048 tokens, the default
    of vLLM V1. The KV watermark of 1 % is V0's default; V1 has none by default. Four kinds of requests
    arrive:

    | requests | rate | lengths | targets |
    |---|---|---|---|
    | *chat*, interactive | 42/s in the mean | ShareGPT | first token in 10 s, 0.2 s per token on average |
    | *code*, interactive | 3.6/s | Azure's | the same |
    | *documents*, batch | 1.5/s all day | arXiv summaries | first token in an hour |
    | *jobs*, batch | 12 a day, of 4,000 to 10,000 at once, any hour | ShareGPT | one to eight hours |

    Rates of chat and code are those of real days of two services (ServeGen), per ten minutes. The seconds
    within ten minutes are those of the Azure traces of 2023. docs/worlds.md has the source of
    every number.

    A seed draws the day. Days differ in level (chat: 0.5 to 1.4 of its mean) and shape. The policy is not
    told which day it has, but it knows the day before. Days 1 to 8 are the default, and their busiest ten
    minutes need about 13 of the 16 GPUs. `workload="mixed-slo/validation"` has days 9 and 10, and
    `workload="mixed-slo/test"` has days 11 to 14.

    As in Chiron (section 3) there are three pools. *Interactive* and *batch* instances serve one kind of
    request, *mixed* ones both. Interactive requests go to interactive instances that have room, else to
    mixed ones. There they evict batch requests, whose KV cache is saved to host memory and restored later.
    Batch requests wait in shared queues, one per deadline. Batch and mixed instances take the earliest due
    first.

    An instance ordered now serves about 40 s later: 24 s of engine start, 3 s of process start (ours), and
    12.8 s of weights from SSD. Weights take 1.0 s from host memory, and 1.3 s from a serving instance on
    another host. Between decisions the cluster is simulated exactly to the token
    (docs/engine.md). Iteration times are composed of kernels that were measured on an A100, one
    by one (docs/calibration.md).

    ## Action Space

    `MultiDiscrete`. `action_masks()` and `info["action_mask"]` say which choices are possible now, each
    part by itself: together, pools may still order more GPUs than there are. Such an order is clipped and
    counted in `info["clipped"]`.

    - `instances`: how many the pool should have (acquiring, loading and active ones).
    - `batch_limit`: running requests allowed per instance.
    - `overflow_share`: share of interactive requests that tries the mixed pool first.
    - `load_source`: without a serving instance, or a copy in host memory, the next slower source is used.

    ## Observation Space

    `Box`, float32, dimensionless, on fixed scales, clipped to its bounds. Load and work are counted in the
    instances that they keep busy, over the most instances that the GPUs allow. No entry shows the time left
    in an episode; in a whole day, which begins at midnight, the time of day does.

    ## Rewards

    Minus dollars, in units of 20 $ (`llmscale_env.control.reward`), the sum of

    - `gpu`: 2.50 $ per GPU-hour held, loading and draining included, but not the 24 s of engine start;
    - `violations`: 0.002 $ per request that became certain to miss a target, or was rejected;
    - `loads`: nothing;
    - `leftover`: at the horizon, what serving the unfinished requests takes in a full batch.

    Interactive requests without a token are late at the horizon. So are batch requests that all GPUs
    together could no longer serve in time. Other batch requests count in no share (`open` in the wide table
    of `agents.evaluate` counts them). To put them off breaks even for a fleet that gives up the GPUs that
    it then does not need. It loses where instances would have been idle.

    docs/worlds.md derives the price of a late request. `info["reward_parts"]` has the four with
    their sign. No policy gains by not doing the work (`tests/test_anti_cheat_day.py`).

    ## Starting State

    3 interactive and 3 mixed instances serve, none is loading. Batch work of earlier jobs that is not yet
    due waits. Requests are drawn from `self.np_random`: one seed, one episode, whatever the agent does.

    ## Episode End

    Truncated after 24 hours (2,880 decisions). There is no termination.

    ## Arguments

    - `scenario="mixed-slo"`: name, YAML file or `Scenario`;
    - `overrides={}`: its fields by dotted path, such as `{"workload": "mixed-slo/test"}`;

    All others are those of `ServingEnv`.

    ## Information

    `metrics` also has the shares of the group `batch`.

    Everything else is as `ServingEnv` has it.

    ## References

    Patke et al., "Hierarchical autoscaling for large language model serving with Chiron" (2025). Xiang et
    al., "ServeGen" (arXiv 2505.09999), rates under Apache-2.0. Azure LLM inference traces 2023: Patel et
    al., "Splitwise" (ISCA 2024), CC-BY 4.0.

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
    """Two hours of `MixedSLO-v1`, from any time of day: for learning and quick tests.

    - **Decided, seen, paid**: as in `llmscale/MixedSLO-v1` ([its page](mixed-slo.md)).
    - **Tension**: that of the day, in 240 decisions. Episodes begin at any ten minutes of the days, so a
      policy has to serve quiet and busy hours.
    - **Leaderboard**: that of the day, docs/leaderboard.md#mixed-slo. Policies are tuned
      here and judged there, since what is learned here runs on whole days.

    ## Version History

    - v1: first version.
    """

    scenario_name = "mixed-slo-hours"


class MixedSLOHoursVectorEnv(MixedSLOVectorEnv):
    """Many episodes of `llmscale/MixedSLO-Hours-v1` advanced in one call."""

    scenario_name = MixedSLOHoursEnv.scenario_name


class MixedSLOBurstyEnv(MixedSLOEnv):
    """Two hours in which the code service, with the bursts of its trace, brings most of the prompts.

    - **Decided, seen, paid**: as in `llmscale/MixedSLO-Hours-v1` ([the day's page](mixed-slo.md) has it
      all).
    - **World**: a third of the chat requests (14/s in the mean) and twice the code requests (7.2/s).
    - **Tension**: bursts are shorter than a start, so scaling gains little over the best fixed fleet.
    - **Leaderboard**: the table below.

    ## Reference Policies

    `python -m agents.evaluate env=mixed-slo-bursty episodes=20 wide=true policies=static-tuned,A,B,...`,
    seeds 10000 to 10019, means and 95 % intervals:

    | policy | reward | ahead of `static-tuned` | starts billed | on time | GPU-hours | scalings |
    |---|---|---|---|---|---|---|
    | `chiron-tuned` | -2.76 [-3.03, -2.49] | 0.21 [0.07, 0.35] | 0.01 [-0.13, 0.16] | 95.8 % | 17.0 | 484 |
    | `paced-tuned` | -2.86 [-3.18, -2.54] | 0.11 [-0.06, 0.28] | 0.09 [-0.08, 0.26] | 96.6 % | 18.4 | 57 |
    | `static-tuned`: 10 mixed | -2.97 [-3.14, -2.81] | | | 97.2 % | 20.0 | 10 |
    | 9 mixed instances | -2.89 [-3.14, -2.67] | 0.07 [-0.00, 0.14] | | 96.1 % | 18.0 | 9 |
    | 8 mixed instances | -2.86 [-3.19, -2.57] | 0.10 [-0.06, 0.25] | | 94.8 % | 16.0 | 8 |

    "Starts billed" is the lead with `scenario.fleet.pools.*.acquire_s=0 scenario.network.startup_s=27`. The
    24 s of engine start, which cost nothing here (docs/worlds.md), are then paid for; nothing
    else changes. "On time" counts interactive requests; scalings are starts and stops.

    The lead of `chiron-tuned` over the best fixed fleet is what its 243 starts per episode are not billed.
    With starts billed, a search may find other settings.

    Settings of `static`, `chiron` and `paced` were searched here, with the budget that policies have on
    `mixed-slo-hours` (`python -m baselines.tune`; the files in `baselines/tuned` have the commands). Other
    policies have no settings for this environment; those of `mixed-slo-hours` are not used.

    ## Version History

    - v1: first version.
    """

    scenario_name = "mixed-slo-bursty"


class MixedSLOBurstyVectorEnv(MixedSLOVectorEnv):
    """Many episodes of `llmscale/MixedSLO-Bursty-v1` advanced in one call."""

    scenario_name = MixedSLOBurstyEnv.scenario_name


class MixedSLOLargeEnv(MixedSLOEnv):
    """The day of `MixedSLO-v1` with 50 GPUs, the most of Chiron's experiments, and 3.125 times its load.

    - **Decided, seen, paid**: as in `llmscale/MixedSLO-v1` ([its page](mixed-slo.md)). Instance counts have
      the choices that pools of 50 slots give.
    - **Start**: 9 interactive and 9 mixed instances serve.
    - **Tension**: that of the day, for a larger fleet.
    - **Leaderboard**: none of its own.

    ## Version History

    - v1: first version.
    """

    scenario_name = "mixed-slo-large"


class MixedSLOLargeVectorEnv(MixedSLOVectorEnv):
    """Many episodes of `llmscale/MixedSLO-Large-v1` advanced in one call."""

    scenario_name = MixedSLOLargeEnv.scenario_name


BUDGET_SHARE = 0.01
"""Share of the expected requests that may be late in the constrained form: Chiron's target is 99 %."""


class MixedSLOConstrainedEnv(MixedSLOHoursEnv):
    """Two hours of `MixedSLO-v1` whose reward is GPU cost alone; late requests are a cost with a budget.

    - **Decided, seen**: as in `llmscale/MixedSLO-Hours-v1` ([the day's page](mixed-slo.md) has it all).
    - **Paid**: the reward has no part for violations. `info["cost"]` counts the requests that became late
      in the interval. `info["cost_budget"]` and the attribute `cost_budget` say how many may be late in an
      episode: 1 % of those expected.
    - **Tension**: the fewest GPU-hours within that budget, for constrained RL.
    - **Leaderboard**: none. It is for `gymnasium.make`; commands compare policies in `env=mixed-slo-hours`,
      whose reward has all parts.

    ## Version History

    - v1: first version.
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
