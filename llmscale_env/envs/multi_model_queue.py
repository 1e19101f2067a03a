"""`llmscale/MultiModelQueue-v0`: requests of several LLMs wait for a few GPUs, as in QLM."""

from __future__ import annotations

from llmscale_env.envs.base import ServingEnv
from llmscale_env.envs.vector import ServingVectorEnv


class MultiModelQueueEnv(ServingEnv):
    """Requests of several LLMs wait for a few GPUs: which group does each GPU serve next?

    - **Decided**, every 5 s, for each instance: the group that comes first, and if others make way.
    - **Seen**: arrivals, latencies, groups with deadlines, each instance's LLM and load.
    - **Paid**: late requests; all GPUs are held all the time.
    - **Tension**: demand moves between LLMs, but a swap takes 4 to 5 s from host memory, and 12 to
      21 s more from storage.
    - **Leaderboard**: docs/leaderboard.md#multi-model-queue.

    ## Description

    Four A100-80GB serve three LLMs, one at a time each: Mistral 7B, Vicuna 13B, and a fine-tuned
    version of Vicuna. Lengths are ShareGPT's. Host memory has room for Mistral and one Vicuna.

    | class | first token due | arrivals |
    |---|---|---|
    | *interactive* | 20 s | quiet and busy times (2.5 times the mean rate for some 150 s) |
    | *batch-1* | 60 s | the same |
    | *batch-2* | 10 minutes | 1/s, and twice an archive of 1,000 or 2,000 requests at once |

    LLMs, load and the 10 minutes (QLM: an hour) are ours (docs/worlds.md).

    As in QLM (section 4) each instance serves a *virtual queue*: an ordered list of *groups* of
    requests, first come first served within a group. The simulation is exact to the token
    (docs/engine.md, section 9).

    ## Groups

    Each LLM and class has eight groups; one is open and takes the arrivals. At every decision:

    - The open group closes with 256 requests, or if its oldest is a quarter of its TTFT target old.
      A free group (no request waits or runs) opens, and requests beyond 256 move to free groups.
      Without a free one the open group grows on.
    - A group's *deadline* is that of its first request without a token (of its oldest, if all were
      evicted).
    - Two groups of each LLM and class are *shown*: the `first` by deadline and, of the others, the
      `next` whose deadline has not passed. The rest is summed up per LLM.
    - An instance's list is of one LLM: the group put ahead (for one interval), groups whose
      requests all run, the others by deadline. It keeps the LLM while requests wait, so swaps are
      the agent's choice.

    ## Action Space

    `MultiDiscrete`; `action_masks()` says what is possible: groups that exist, of an LLM that the
    instance can serve, and only `keep` and `finish` while it is not active. Other choices count as
    the part's first one, and in `info["clipped"]`.

    | Choice of `serves` | Name | Meaning |
    |---|---|---|
    | 0 | `keep` | stay with the LLM; its groups by deadline |
    | 1, 3, ..., 17 | `LLM/CLASS/first` | put the group shown as `first` ahead |
    | 2, 4, ..., 18 | `LLM/CLASS/next` | put the group shown as `next` ahead |

    LLMs and classes are in the order of the observation: 1 to 6 are of `mistral-7b`, 1 and 2 of its
    class `interactive`.

    `make_way`: with `finish`, running requests end first. With `evict`, requests of an earlier
    group evict running ones of later groups if not all fit; their KV cache goes to host memory and
    comes back. A swap then flushes what runs, and its KV cache is lost.

    ## Observation Space

    `Box`, float32, on fixed scales. "Expected" is the scenario's mean; an interval is the last one.
    Entry 0 (block `clock`) shows the time left, which no service has.

    ## Rewards

    Minus the sum (`llmscale_env.control.reward`) of

    - `gpu`: GPU-seconds held over those of all four GPUs, always 1;
    - `violations`: 10 x the sum over classes of requests that became certain to miss a target (each
      once), over those *expected* per interval;
    - `loads`: 0.02 per instance started (a swap is no start);
    - `leftover`: as `gpu`, for serving the unfinished requests one by one at the horizon.

    ## Starting State

    Two instances have Mistral 7B, one Vicuna 13B, one its fine-tuned version, and host memory the
    same. No request waits. The seed fixes all requests.

    ## Episode End

    Truncated after 1,800 s (360 decisions), never terminated.

    ## Arguments

    - `scenario="multi-model-queue"`: it needs two group queues for every LLM and class at least
      (`fleet.group_queues`);
    - `overrides={}`: such as `{"workload.rate_scale": 0.8}`. With
      `{"fleet.pools.gpu-0.mtbf_s": 900.0, "fleet.pools.gpu-0.repair_s": 60.0}` that GPU fails at
      random. Its requests start again, and its action is masked until it is back;

    All others are those of `ServingEnv`.

    ## Information

    `metrics` also has `queue/groups` and `swaps`.

    Everything else is as `ServingEnv` has it.

    ## References

    Patke et al., "Queue Management for SLO-Oriented Large Language Model Serving" (SoCC 2024).

    ## Version History

    - v0: first version.
    """

    scenario_name = "multi-model-queue"
    observation = ("clock", "arrivals", "latency", "groups", "instances", "last_action")
    action = ("group_order", "make_way")


class MultiModelQueueVectorEnv(ServingVectorEnv):
    """Many episodes of `llmscale/MultiModelQueue-v0` advanced in one call: see `MultiModelQueueEnv`."""

    scenario_name = MultiModelQueueEnv.scenario_name
    observation = MultiModelQueueEnv.observation
    action = MultiModelQueueEnv.action
