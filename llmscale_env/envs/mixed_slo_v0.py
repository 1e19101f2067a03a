"""`llmscale/MixedSLO-v0`: interactive and batch requests on one cluster, as in Chiron."""

from __future__ import annotations

from llmscale_env.envs.base import ServingEnv, ServingVectorEnv


class MixedSLOV0Env(ServingEnv):
    """Interactive and batch requests share a cluster: how many instances, of which kind, how full?

    ## Description

    One LLM (Llama-3.1-8B) is served on up to 16 A100-80GB. Interactive requests (a chat service and a
    code-completion service with the bursts of the Azure traces of 2023) want their first token within
    10 s and a token every 0.2 s on average; batch requests (a stream of documents, and a queue of
    4,000 that appears after five minutes) want their first token within 20 minutes. As in Chiron
    (section 3) there are three pools: *interactive* and *batch* instances serve one kind, *mixed*
    ones both. Interactive requests go to interactive instances that have room, else to mixed ones, where they
    evict batch requests (KV cache saved to host memory, restored later). Batch requests wait in a
    shared queue from which batch and mixed instances pull.

    Every 10 s the agent changes instance counts, batch limits, the share of interactive requests that
    tries the mixed pool first, and where new instances load weights from. An instance ordered now
    serves only after its weights are loaded: about 16 s from SSD, 4 s from host memory or by multicast
    from a serving instance, 3 s of process start (ours) included. Between decisions the cluster is
    simulated exactly to the token (docs/engine.md). Iteration times are composed of kernels that were
    measured on an A100, one by one (docs/calibration.md).

    ## Action Space

    `MultiDiscrete`. An order that is impossible (more GPUs than there are) is clipped and counted in
    `info["clipped"]`; `action_masks()` and `info["action_mask"]` say which choices are possible now, each
    part for itself (pools may still want more GPUs together than there are).

    | Num | Part | Choices |
    |---|---|---|
    | 0 | `interactive/instances` | 0, 1, 2, 3, 4, 5, 6, 8, 10, 12, 16 |
    | 1 | `mixed/instances` | 0, 1, 2, 3, 4, 5, 6, 8, 10, 12, 16 |
    | 2 | `batch/instances` | 0, 1, 2, 3, 4, 5, 6, 8, 10, 12, 16 |
    | 3 | `interactive/batch_limit` | 8, 16, 32, 64, 128, 256, 512, 1024 |
    | 4 | `mixed/batch_limit` | 8, 16, 32, 64, 128, 256, 512, 1024 |
    | 5 | `batch/batch_limit` | 8, 16, 32, 64, 128, 256, 512, 1024 |
    | 6 | `interactive/overflow_share` | 0, 0.25, 0.5, 0.75, 1 |
    | 7 | `load_source` | ssd, host, multicast |

    `instances`: how many the pool should have (acquiring, loading and active ones). `batch_limit`: running
    requests allowed per instance. `overflow_share`: share of interactive requests that tries the mixed pool
    first. `load_source`: a source that is not there (no serving instance, no copy in host memory) gives
    way to the next slower one. What multicast takes is the plan of BlitzScale's scale planner for one target
    alone, on another machine: loads do not share links here, however many there are.

    ## Observation Space

    `Box`, float32, dimensionless, on fixed scales, clipped to its bounds. "Expected" is the mean of the
    scenario; a window is the last control interval.

    | Num | Entry | Min | Max | Meaning |
    |---|---|---|---|---|
    | 0 | `clock/elapsed` | 0 | 1 | time / horizon |
    | 1 | `interactive/arrivals` | 0 | 1 | arrivals in the interval, log scale to 16 x expected |
    | 2 | `interactive/trend_60s` | -1 | 1 | log2(interval / mean of 60 s) / 4 |
    | 3 | `interactive/trend_300s` | -1 | 1 | log2(interval / mean of 300 s) / 4 |
    | 4 | `batch/arrivals` | 0 | 1 | arrivals in the interval, log scale to 16 x expected |
    | 5 | `batch/trend_60s` | -1 | 1 | log2(interval / mean of 60 s) / 4 |
    | 6 | `batch/trend_300s` | -1 | 1 | log2(interval / mean of 300 s) / 4 |
    | 7 | `interactive/forecast` | 0 | 1 | forecast rate 20 s ahead, log scale to 16 x expected |
    | 8 | `interactive/forecast_error` | 0 | 1 | its recent weighted absolute percentage error / 2 |
    | 9 | `batch/forecast` | 0 | 1 | forecast rate 20 s ahead, log scale to 16 x expected |
    | 10 | `batch/forecast_error` | 0 | 1 | its recent weighted absolute percentage error / 2 |
    | 11 | `interactive/ttft_mean` | 0 | 1 | mean TTFT / target / 2 |
    | 12 | `interactive/ttft_max` | 0 | 1 | largest TTFT / target / 2 |
    | 13 | `interactive/itl_mean` | 0 | 1 | mean ITL / target / 2 |
    | 14 | `interactive/itl_max` | 0 | 1 | largest mean ITL of a request / target / 4 |
    | 15 | `interactive/violations` | 0 | 1 | violations / (violations + on time) |
    | 16 | `batch/ttft_mean` | 0 | 1 | mean TTFT / target / 2 |
    | 17 | `batch/ttft_max` | 0 | 1 | largest TTFT / target / 2 |
    | 18 | `batch/itl_mean` | 0 | 1 | mean ITL / target / 2 |
    | 19 | `batch/itl_max` | 0 | 1 | largest mean ITL of a request / target / 4 |
    | 20 | `batch/violations` | 0 | 1 | violations / (violations + on time) |
    | 21 | `batch/length` | 0 | 1 | requests, log scale to all expected in an episode |
    | 22 | `batch/oldest` | 0 | 1 | age of the oldest / longest TTFT target / 2 |
    | 23 | `batch/slack_0` | 0 | 1 | share with deadline passed |
    | 24 | `batch/slack_1` | 0 | 1 | share with 0% to 10% of the target left |
    | 25 | `batch/slack_2` | 0 | 1 | share with 10% to 25% of the target left |
    | 26 | `batch/slack_3` | 0 | 1 | share with 25% to 50% of the target left |
    | 27 | `batch/slack_4` | 0 | 1 | share with 50% or more of the target left |
    | 28 | `gpus/free` | 0 | 1 | free GPUs / max_gpus |
    | 29 | `interactive/active` | 0 | 1 | active instances / slots |
    | 30 | `interactive/draining` | 0 | 1 | draining instances / slots |
    | 31 | `interactive/loading_0` | 0 | 1 | not yet active, up to 5 s left, / slots |
    | 32 | `interactive/loading_1` | 0 | 1 | not yet active, 5 s to 15 s left, / slots |
    | 33 | `interactive/loading_2` | 0 | 1 | not yet active, 15 s to 30 s left, / slots |
    | 34 | `interactive/loading_3` | 0 | 1 | not yet active, more than 30 s left, / slots |
    | 35 | `interactive/running` | 0 | 1 | running requests / sum of batch limits |
    | 36 | `interactive/waiting` | 0 | 1 | waiting requests / sum of batch limits, log scale to 8 |
    | 37 | `interactive/kv` | 0 | 1 | KV use / capacity |
    | 38 | `interactive/kv_max` | 0 | 1 | KV use of the fullest instance |
    | 39 | `interactive/preemptions` | 0 | 1 | preemptions and evictions per iteration, log to 1 |
    | 40 | `interactive/limit` | 0 | 1 | mean batch limit, log scale to max_batch |
    | 41 | `interactive/busy` | 0 | 1 | share of active instances with any request |
    | 42 | `mixed/active` | 0 | 1 | active instances / slots |
    | 43 | `mixed/draining` | 0 | 1 | draining instances / slots |
    | 44 | `mixed/loading_0` | 0 | 1 | not yet active, up to 5 s left, / slots |
    | 45 | `mixed/loading_1` | 0 | 1 | not yet active, 5 s to 15 s left, / slots |
    | 46 | `mixed/loading_2` | 0 | 1 | not yet active, 15 s to 30 s left, / slots |
    | 47 | `mixed/loading_3` | 0 | 1 | not yet active, more than 30 s left, / slots |
    | 48 | `mixed/running` | 0 | 1 | running requests / sum of batch limits |
    | 49 | `mixed/waiting` | 0 | 1 | waiting requests / sum of batch limits, log scale to 8 |
    | 50 | `mixed/kv` | 0 | 1 | KV use / capacity |
    | 51 | `mixed/kv_max` | 0 | 1 | KV use of the fullest instance |
    | 52 | `mixed/preemptions` | 0 | 1 | preemptions and evictions per iteration, log to 1 |
    | 53 | `mixed/limit` | 0 | 1 | mean batch limit, log scale to max_batch |
    | 54 | `mixed/busy` | 0 | 1 | share of active instances with any request |
    | 55 | `batch/active` | 0 | 1 | active instances / slots |
    | 56 | `batch/draining` | 0 | 1 | draining instances / slots |
    | 57 | `batch/loading_0` | 0 | 1 | not yet active, up to 5 s left, / slots |
    | 58 | `batch/loading_1` | 0 | 1 | not yet active, 5 s to 15 s left, / slots |
    | 59 | `batch/loading_2` | 0 | 1 | not yet active, 15 s to 30 s left, / slots |
    | 60 | `batch/loading_3` | 0 | 1 | not yet active, more than 30 s left, / slots |
    | 61 | `batch/running` | 0 | 1 | running requests / sum of batch limits |
    | 62 | `batch/waiting` | 0 | 1 | waiting requests / sum of batch limits, log scale to 8 |
    | 63 | `batch/kv` | 0 | 1 | KV use / capacity |
    | 64 | `batch/kv_max` | 0 | 1 | KV use of the fullest instance |
    | 65 | `batch/preemptions` | 0 | 1 | preemptions and evictions per iteration, log to 1 |
    | 66 | `batch/limit` | 0 | 1 | mean batch limit, log scale to max_batch |
    | 67 | `batch/busy` | 0 | 1 | share of active instances with any request |
    | 68 | `ibp` | 0 | 1 | instances with interactive requests / interactive and mixed instances |
    | 69 | `bbp` | 0 | 1 | share of queued requests with under a quarter of their target left |
    | 70 | `interactive/lbp` | 0 | 1 | latency backpressure: largest ITL / target / 4 |
    | 71 | `batch/lbp` | 0 | 1 | latency backpressure: largest ITL / target / 4 |
    | 72 | `last/interactive/instances` | 0 | 1 | choice / (choices - 1); 0 at the start |
    | 73 | `last/mixed/instances` | 0 | 1 | choice / (choices - 1); 0 at the start |
    | 74 | `last/batch/instances` | 0 | 1 | choice / (choices - 1); 0 at the start |
    | 75 | `last/interactive/batch_limit` | 0 | 1 | choice / (choices - 1); 0 at the start |
    | 76 | `last/mixed/batch_limit` | 0 | 1 | choice / (choices - 1); 0 at the start |
    | 77 | `last/batch/batch_limit` | 0 | 1 | choice / (choices - 1); 0 at the start |
    | 78 | `last/interactive/overflow_share` | 0 | 1 | choice / (choices - 1); 0 at the start |
    | 79 | `last/load_source` | 0 | 1 | choice / (choices - 1); 0 at the start |

    ## Rewards

    Minus the cost of the interval (`llmscale_env.control.reward`), the sum of

    - `gpu`: GPU-seconds held (loading and draining included) over those of all 16 GPUs;
    - `violations`: 10 x the sum over classes of requests that became certain to miss a target (or were
      rejected) over the requests *expected* per interval;
    - `loads`: 0.02 per instance started;
    - `leftover`: at the horizon, the GPU-seconds that serving the unfinished requests one by one would
      take, in the unit of `gpu`.

    Each request is charged at most once, when its violation becomes certain; dividing by expected
    arrivals leaves nothing to gain by serving fewer. `info["reward_parts"]` has the four with their sign.

    Nobody gains by not doing the work (`tests/test_anti_cheat.py`): to reject all, to never scale, to hold
    all 16 GPUs and to stop serving at the end score below tuned heuristics on the mixes `mixed-slo-v0` and
    `spike` and on the five validation workloads of the family, in every episode tried. Two exceptions are
    known, both where the load is more than all GPUs can carry (`code-burst`): there all GPUs all the time
    are better than any smaller fleet, since a violation costs ten times what all of them do; and to stop ten
    seconds early sometimes saves more than the work left over costs, since who is not started by then can
    miss no target any more. And a heuristic that holds more than it needs may gain a little (1 of 100 at
    most) by stopping ten seconds early where an episode ends with hardly anything to serve.

    ## Starting State

    4 interactive and 4 mixed instances serve, none is loading, queues are empty. The requests of the
    episode are drawn from `self.np_random`: one seed, one episode, whatever the agent does.

    ## Episode End

    Truncated after 1,800 s (180 decisions). There is no termination.

    ## Arguments

    - `scenario="mixed-slo-v0"`: name, YAML file or `Scenario`;
    - `overrides={}`: its fields by dotted path, such as `{"fleet.max_gpus": 12, "workload.rate_scale": 1.5}`;
    - `observation`, `action`: names of blocks (`llmscale_env.envs.observations.BLOCKS`) and heads
      (`llmscale_env.envs.actions.HEADS`) in place of the default ones;
    - `forecaster="ewma"`: what the forecast entries show (`llmscale_env.control.forecast`);
    - `reference`: a policy whose instance counts the head `residual` multiplies; `shaping`: weight of a term
      of the reward for requests that will be late (docs/forms.md);
    - `engine="fast"`: or `"reference"`, the simulator in readable Python, with the same numbers
      (docs/architecture.md);
    - `render_mode`: "ansi" (a table of the cluster now) or "rgb_array" (arrivals, queues, instances and
      attainment over the episode so far).

    The vectorised form (`gym.make_vec(..., vectorization_mode="vector_entry_point")`) takes
    `num_envs` and `threads` besides, advances all episodes in one call, and resets a finished one in
    the same step. Episode `e` of it equals a single environment reset with `seed + e`.

    ## Information

    - `metrics`: of the episode so far: `CLASS/slo_attainment`, `CLASS/violations`, `CLASS/arrived`,
      `joint/slo_attainment`, `gpu_hours`, `loads`, `preemptions`, `evictions`, `POOL/active`,
      `POOL/loading`, `POOL/running`, `POOL/waiting`, `POOL/batch_limit`, `queue/QUEUE`, `reward`;
    - `reward_parts`, `clipped`, `action_mask`: see above;
    - `cost`: violations of the interval, for constrained RL, and `cost_by_class`;
    - `episode_summary`: the metrics at the end of an episode, attainment as the share of all arrivals
      (in `metrics`, of those whose fate is known).

    `set_weights(gpu=, violations=, loads=)` moves the weights of the reward's parts, `violations` for all
    classes or by class, as a Lagrangian needs; `metrics` keeps the reward by the scenario's own.

    `save_state()`, `restore_state(saved)` and `fork()` copy an episode in progress; `view()` shows it
    as a handwritten policy sees it.

    ## References

    Patke et al., "Hierarchical autoscaling for large language model serving with Chiron" (2025).
    Azure LLM inference traces 2023: Patel et al., "Splitwise" (ISCA 2024), CC-BY 4.0.

    ## Version History

    - v1 takes its place: a day, on which scaling matters ([its page](mixed-slo.md)). This one stays.
      What v1's prices have mended stays here: on the mix `code-burst` all 16 GPUs all the time pay, and to
      stop serving ten seconds before the end can pay under overload.
    - v0: first version. After 0.1.0, class-affine routing is zero queueing: an interactive request goes on
      to a mixed instance where another already waits.
    """

    scenario_name = "mixed-slo-v0"
    observation = (
        "clock",
        "arrivals",
        "forecast",
        "latency",
        "queues",
        "fleet",
        "backpressure",
        "last_action",
    )
    action = ("instance_counts", "batch_limits", "routing_share", "loading")


class MixedSLOV0VectorEnv(ServingVectorEnv):
    """Many episodes of `llmscale/MixedSLO-v0` advanced in one call: see `MixedSLOV0Env`."""

    scenario_name = MixedSLOV0Env.scenario_name
    observation = MixedSLOV0Env.observation
    action = MixedSLOV0Env.action
