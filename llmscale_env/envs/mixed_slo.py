"""`llmscale/MixedSLO-v1` and its shorter forms: one cluster, interactive and batch requests, real days."""

from __future__ import annotations

from typing import Any

from llmscale_env.control.reward import expected_arrivals
from llmscale_env.envs.base import ServingEnv
from llmscale_env.envs.vector import ServingVectorEnv


class MixedSLOEnv(ServingEnv):
    """A day of an LLM service, midnight to midnight: how many instances, of which kind, how full?

    - **Decided**, every 30 s: instances and batch limits of three pools, routing, source of
      weights.
    - **Seen**: load now, yesterday and forecast; waiting work by deadline; latencies; pools.
    - **Paid**: GPU-hours and late requests, in dollars.
    - **Tension**: an instance serves 40 s after its order, and the day, with a peak of 1.2 to 2.7
      times its mean, is unknown. Batch requests can wait, up to their deadlines.
    - **Leaderboard**: docs/leaderboard.md#mixed-slo.

    ## Description

    Up to 16 A100-80GB serve Llama-3.1-8B. docs/worlds.md has the source of every number.

    | requests | rate | lengths | targets |
    |---|---|---|---|
    | *chat*, interactive | 42/s in the mean | ShareGPT | first token 10 s, 0.2 s per token (mean) |
    | *code*, interactive | 3.6/s | Azure's | the same |
    | *documents*, batch | 1.5/s all day | arXiv summaries | first token in an hour |
    | *jobs*, batch | 12 a day, any hour, 4,000 to 10,000 at once | ShareGPT | one to eight hours |

    The seed draws a real day: ServeGen's rates per ten minutes, with the seconds of Azure's traces.
    Days differ in level and shape. The policy is told the day before, not the day.

    | `workload` | days |
    |---|---|
    | default | 1 to 8; the busiest ten minutes need about 13 of the 16 GPUs |
    | `mixed-slo/validation` | 9 and 10 |
    | `mixed-slo/test` | 11 to 14 |

    Pools are Chiron's (section 3):

    | pool | serves |
    |---|---|
    | *interactive* | interactive requests, as long as there is room |
    | *mixed* | the other interactive requests, which evict batch requests; and batch requests |
    | *batch* | batch requests |

    Batch requests wait in a queue per deadline, the earliest due first. Evicted ones keep their KV
    cache in host memory.

    | part of a start | takes |
    |---|---|
    | engine | 24 s |
    | process | 3 s |
    | weights from SSD | 12.8 s |
    | from host memory | 1.0 s |
    | from an instance on another host | 1.3 s |

    The simulation is exact to the token (docs/engine.md); iteration times are composed of kernels
    measured on an A100 (docs/calibration.md).

    ## Action Space

    `MultiDiscrete`, with a mask per part (`action_masks()`). Orders that together need more GPUs
    than there are get clipped (`info["clipped"]`).

    - `instances`: wanted in the pool (acquiring, loading and active).
    - `batch_limit`: running requests per instance.
    - `overflow_share`: share of interactive requests that tries the mixed pool first.
    - `load_source`: of weights; one that is not there gives way to the next slower.

    ## Observation Space

    `Box`, float32, on fixed scales. Load and work are counted in the instances that they keep busy,
    over the most that the GPUs allow. Only the time of day tells how much of a whole day is left.

    ## Rewards

    Minus dollars, in units of 20 $ (`llmscale_env.control.reward`):

    - `gpu`: 2.50 $ per GPU-hour held, loading and draining included, engine start (24 s) not;
    - `violations`: 0.002 $ per request that became certain to miss a target, or was rejected
      (docs/worlds.md derives it);
    - `loads`: nothing;
    - `leftover`: GPU time of serving the unfinished requests in a full batch, at the horizon.

    At the horizon two kinds of requests are late: interactive ones without a token, and batch ones
    that all GPUs together could not serve in time. Other batch requests are `open`
    (docs/training.md), in no share; to put work off gains nothing.

    ## Starting State

    3 interactive and 3 mixed instances serve; work of earlier jobs waits. The seed fixes all
    requests.

    ## Episode End

    Truncated after 24 hours (2,880 decisions), never terminated.

    ## Arguments

    | argument | meaning |
    |---|---|
    | `scenario="mixed-slo"` | name, YAML file or `Scenario` |
    | `overrides={}` | its fields by dotted path, such as `{"workload": "mixed-slo/test"}` |

    All others are those of `ServingEnv`.

    ## Information

    `metrics` also has the shares of the group `batch`.

    Everything else is as `ServingEnv` has it.

    ## References

    Patke et al., "Hierarchical autoscaling for large language model serving with Chiron" (2025).
    Xiang et al., "ServeGen" (arXiv 2505.09999), rates under Apache-2.0. Azure LLM inference traces
    2023: Patel et al., "Splitwise" (ISCA 2024), CC-BY 4.0.

    ## Version History

    - v1: a real day (v0: half an hour), prices in dollars, chunked prefill, other start times.
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
    - **Tension**: that of the day, in 240 decisions from any ten minutes on.
    - **Leaderboard**: that of the day, docs/leaderboard.md#mixed-slo: what is learned here runs
      there.

    ## Version History

    - v1: first version.
    """

    scenario_name = "mixed-slo-hours"


class MixedSLOHoursVectorEnv(MixedSLOVectorEnv):
    """Many episodes of `llmscale/MixedSLO-Hours-v1` advanced in one call."""

    scenario_name = MixedSLOHoursEnv.scenario_name


class MixedSLOBurstyEnv(MixedSLOEnv):
    """Two hours in which the code service, with its trace's bursts, brings most of the prompts.

    - **Decided, seen, paid**: as in `llmscale/MixedSLO-Hours-v1` ([the day's page](mixed-slo.md)).
    - **World**: a third of the chat requests (14/s in the mean) and twice the code requests
      (7.2/s).
    - **Tension**: bursts are shorter than a start, so scaling gains little over the best fixed
      fleet.
    - **Leaderboard**: the table below.

    ## Reference Policies

    `python -m agents.evaluate env=mixed-slo-bursty episodes=20 wide=true
    policies=static-tuned,A,B,...`, seeds 10000 to 10019, means and 95 % intervals:

    | policy | reward | ahead of `static-tuned` | starts billed | on time | GPU-hours | scalings |
    |---|---|---|---|---|---|---|
    | `chiron-tuned` | -2.76 [-3.03, -2.49] | 0.21 [0.07, 0.35] | 0.01 [-0.13, 0.16] | 95.8 % | 17.0 | 484 |
    | `paced-tuned` | -2.86 [-3.18, -2.54] | 0.11 [-0.06, 0.28] | 0.09 [-0.08, 0.26] | 96.6 % | 18.4 | 57 |
    | `static-tuned`: 10 mixed | -2.97 [-3.14, -2.81] | | | 97.2 % | 20.0 | 10 |
    | 9 mixed instances | -2.89 [-3.14, -2.67] | 0.07 [-0.00, 0.14] | | 96.1 % | 18.0 | 9 |
    | 8 mixed instances | -2.86 [-3.19, -2.57] | 0.10 [-0.06, 0.25] | | 94.8 % | 16.0 | 8 |

    - *Starts billed*: the lead with
      `scenario.fleet.pools.*.acquire_s=0 scenario.network.startup_s=27`. The 24 s of engine start,
      free here (docs/worlds.md), are then billed. `chiron-tuned` leads only because its 243 starts
      per episode are free; settings searched for billed starts may differ.
    - *On time*: interactive requests. *Scalings*: starts and stops.
    - `baselines/tuned` has the settings, searched here with the budget of `mixed-slo-hours`, and
      their commands. Only `static`, `chiron` and `paced` have some.

    ## Version History

    - v1: first version.
    """

    scenario_name = "mixed-slo-bursty"


class MixedSLOBurstyVectorEnv(MixedSLOVectorEnv):
    """Many episodes of `llmscale/MixedSLO-Bursty-v1` advanced in one call."""

    scenario_name = MixedSLOBurstyEnv.scenario_name


class MixedSLOLargeEnv(MixedSLOEnv):
    """The day of `MixedSLO-v1` with 50 GPUs (Chiron's most) and 3.125 times its load.

    - **Decided, seen, paid, tension**: as in `llmscale/MixedSLO-v1` ([its page](mixed-slo.md)),
      with instance counts up to 50.
    - **Start**: 9 interactive and 9 mixed instances serve.
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
    """Two hours of `MixedSLO-v1` with GPU cost alone as reward; late requests have a budget.

    - **Decided, seen**: as in `llmscale/MixedSLO-Hours-v1` ([the day's page](mixed-slo.md)).
    - **Paid**: GPU-hours. `info["cost"]` counts requests that became late in the interval;
      `info["cost_budget"]` (also an attribute) is how many may be in an episode: 1 % of those
      expected.
    - **Tension**: the fewest GPU-hours within that budget, for constrained RL.
    - **Leaderboard**: none. This form is for `gymnasium.make`; commands use `env=mixed-slo-hours`.

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
