"""`llmscale/MultiModelQueue-v0`: requests of several LLMs wait for a few GPUs, as in QLM."""

from __future__ import annotations

from llmscale_env.envs.base import ServingEnv
from llmscale_env.envs.vector import ServingVectorEnv


class MultiModelQueueEnv(ServingEnv):
    """Requests of several LLMs wait for a few GPUs: which group does each GPU serve next?

    - **Decided**, every 5 s, for each instance: which group of requests comes first in its list, and
      whether running requests make way for it.
    - **Seen**: arrivals and latencies by class; groups with their deadlines; each instance's LLM, list and
      load.
    - **Paid**: late requests; all GPUs are held all the time.
    - **Tension**: the demand for each LLM moves, so a GPU that stays with its LLM has too little to do at
      times and too much at others. But a swap takes 4 to 5 s from host memory, and 12 to 21 s more from
      storage.
    - **Leaderboard**: docs/leaderboard.md#multi-model-queue.

    ## Description

    Four A100-80GB serve three LLMs, one LLM at a time each: Mistral 7B, Vicuna 13B, and a fine-tuned
    version of Vicuna. Lengths are ShareGPT's. Host memory has room for Mistral and one Vicuna.

    | class | first token due | arrivals |
    |---|---|---|
    | *interactive* | 20 s | quiet and busy times (2.5 times the mean rate for some 150 s) |
    | *batch-1* | 60 s | the same |
    | *batch-2* | 10 minutes | twice an archive of 1,000 or 2,000 requests at once |

    QLM's targets are 20 s, one minute and one hour; the 10 minutes are ours, since an episode is half an
    hour. LLMs and load are ours too. QLM's own workload of several LLMs (W_B in section 8) has batch
    requests alone, for fine-tuned versions of Mistral 7B, Vicuna 13B and Llama 70B, on 50 A100. The paper
    leaves out interactive requests for several LLMs, since its scheduler would give each LLM a GPU of its
    own.

    As in QLM (section 4) requests wait in *groups*. Each instance serves a *virtual queue*: an ordered list
    of groups, first come first served within a group. Between decisions the cluster is simulated exactly to
    the token (docs/engine.md, section 9).

    ## Groups

    An LLM and a class have eight groups; one is open and takes the arrivals. At every decision:

    - An open group closes if it holds 256 requests, or if its oldest request is a quarter of its TTFT
      target old. A free group (none of its requests waits or runs) opens instead, and requests beyond 256
      move to free groups. With no free group the open one grows on.
    - A group's *deadline* is that of its first request without a token (of its oldest, if all were
      evicted).
    - Two groups of each LLM and class are *shown*: the `first` by deadline and, of the others, the `next`
      whose deadline has not passed. The rest is summed up per LLM. So a place in the observation belongs to
      one LLM and class, whatever the number of groups.
    - An instance's list is of one LLM: the group put ahead, the groups whose requests all run, all others
      by deadline. So no group of that LLM starves, and an instance swaps only when told to. A group stays
      ahead for one interval. The LLM stays as long as requests wait for it.

    ## Action Space

    `MultiDiscrete`. `action_masks()` and `info["action_mask"]` say which choices are possible now.
    Impossible are a group that does not exist, and one of an LLM that the instance cannot serve. An
    instance that is not active (one that swaps, say) has `keep` and `finish` only. An impossible choice
    counts as the part's first one, and in `info["clipped"]`.

    | Choice of `serves` | Name | Meaning |
    |---|---|---|
    | 0 | `keep` | stay with the LLM; its groups by deadline |
    | 1, 3, ..., 17 | `LLM/CLASS/first` | put ahead: of these the one with the earliest deadline |
    | 2, 4, ..., 18 | `LLM/CLASS/next` | put ahead: of these the next one whose deadline has not passed |

    LLMs and classes are in the order of the table of the observation: 1 to 6 are of `mistral-7b`, 1 and 2
    of its class `interactive`.

    `make_way`: with `evict`, requests of a group that comes earlier in the list evict running ones of later
    groups when they do not fit beside them. The KV cache goes to host memory beside the iterations, and
    comes back. A swap flushes what runs, and its KV cache is lost. With `finish`, what runs ends first.

    ## Observation Space

    `Box`, float32, dimensionless, on fixed scales, clipped to its bounds. "Expected" is the mean of the
    scenario; a window is the last control interval. Entry 0 shows the time left, which no service has;
    `observation` without the block `clock` omits it. No other entry does (`tests/test_leaks.py`). Even so,
    to stop serving early does not pay (`tests/test_anti_cheat_worlds.py`).

    ## Rewards

    Minus the cost of the interval (`llmscale_env.control.reward`), the sum of

    - `gpu`: GPU-seconds held over those of all four GPUs: 1 per step, since all are held all the time;
    - `violations`: 10 x the sum over classes of requests that became certain to miss a target over the
      requests *expected* per interval;
    - `loads`: 0.02 per instance started (swaps are not starts: they cost time);
    - `leftover`: at the horizon, the GPU-seconds that serving the unfinished requests one by one would
      take, in the unit of `gpu`.

    Each request is charged at most once, when its violation becomes certain. `info["reward_parts"]` has the
    four with their sign.

    ## Starting State

    Two instances have Mistral 7B, one has Vicuna 13B, one its fine-tuned version. Host memory holds the
    same; no request waits. Requests are drawn from `self.np_random`: one seed, one episode, whatever the
    agent does.

    ## Episode End

    Truncated after 1,800 s (360 decisions). There is no termination.

    ## Arguments

    - `scenario="multi-model-queue"`: name, YAML file or `Scenario`. It needs at least two group queues for
      every LLM and class (`fleet.group_queues`);
    - `overrides={}`: its fields by dotted path, such as `{"workload.rate_scale": 0.8}`. With
      `{"fleet.pools.gpu-0.mtbf_s": 900.0, "fleet.pools.gpu-0.repair_s": 60.0}` that GPU fails at random.
      What ran there starts again, and its action is masked until it is back;

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
