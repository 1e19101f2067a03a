"""`llmscale/MixedSLO-v0`: interactive and batch requests on one cluster, as in Chiron."""

from __future__ import annotations

from llmscale_env.envs.base import ServingEnv
from llmscale_env.envs.vector import ServingVectorEnv


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

    `instances`: how many the pool should have (acquiring, loading and active ones). `batch_limit`: running
    requests allowed per instance. `overflow_share`: share of interactive requests that tries the mixed pool
    first. `load_source`: a source that is not there (no serving instance, no copy in host memory) gives
    way to the next slower one. What multicast takes is the plan of BlitzScale's scale planner for one target
    alone, on another machine: loads do not share links here, however many there are.

    ## Observation Space

    `Box`, float32, dimensionless, on fixed scales, clipped to its bounds. "Expected" is the mean of the
    scenario; a window is the last control interval. `env.unwrapped.observation_entries` and
    `action_choices` list what the tables of docs/environments list.

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

    All others are those of `ServingEnv`.

    ## Information

    Everything else is as `ServingEnv` has it.

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
