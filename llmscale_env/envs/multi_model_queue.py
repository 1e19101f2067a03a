"""`llmscale/MultiModelQueue-v0`: requests of several LLMs wait for a few GPUs, as in QLM."""

from __future__ import annotations

from llmscale_env.envs.base import ServingEnv
from llmscale_env.envs.vector import ServingVectorEnv


class MultiModelQueueEnv(ServingEnv):
    """Requests of several LLMs wait for a few GPUs: which group does each GPU serve next?

    ## Description

    Three LLMs (Mistral 7B, Vicuna 13B, and a fine-tuned version of Vicuna) are served by four
    A100-80GB, one LLM at a time each. Requests are of three classes, after QLM's (20 s, one minute and
    one hour to the first token): *interactive* (20 s), *batch-1* (60 s) and *batch-2* (10 minutes;
    ours, since an hour would say nothing in an episode of half an hour).

    Which LLM is asked for moves. Every interactive and batch-1 stream has quiet and busy times (2.5 times
    its mean rate for some 150 s), and twice an archive of 1,000 or 2,000 batch-2 requests appears at once.
    So GPUs that stay with their LLM are too many for it at times and too few at others. But a swap takes 4
    to 5 s from host memory, which has room for Mistral and one Vicuna, and 12 to 21 s more from storage.
    Lengths are ShareGPT's.

    LLMs and load are ours. QLM's own workload of several LLMs (W_B in section 8) has batch requests alone,
    for fine-tuned versions of Mistral 7B, Vicuna 13B and Llama 70B, on 50 A100. The paper leaves out
    interactive requests for several LLMs, since its scheduler would give each LLM a GPU of its own.

    As in QLM (section 4) requests wait in *groups*, and each instance serves a *virtual queue*, an
    ordered list of groups, first come first served within one. Every 5 s the agent decides for each
    instance which group comes first in its list, and whether running requests make way for it. Between
    decisions the cluster is simulated exactly to the token (docs/engine.md, section 9).

    ## Groups

    An LLM and a class have eight groups; one is open and takes the arrivals. At every decision:

    - an open group is closed if it holds 256 requests, or if its oldest request is a quarter of its
      TTFT target old. A group that is free (nobody waits in it or runs from it) is opened instead;
      requests beyond 256 move to free ones. With none free, the open group grows on;
    - a group's *deadline* is that of its first request without a token (of its oldest, if all were
      evicted);
    - two groups of each LLM and class are *shown*: the `first` by deadline and, of the others, the
      `next` whose deadline has not passed. What is left is summed up per LLM. The place of a group in
      the observation thus says its LLM and class, whatever their number;
    - an instance's list is of one LLM: the group put ahead, those of which everybody runs, all others
      by deadline. So nothing of that LLM starves, and an instance swaps only when told to. A group
      stays ahead for one interval; the LLM stays as long as anybody waits for it.

    ## Action Space

    `MultiDiscrete`. `action_masks()` and `info["action_mask"]` say which choices are possible now: not
    a group that does not exist, nor one of an LLM that the instance cannot serve, nor anything but
    `keep` and `finish` for an instance that is not active (one that swaps, say). An impossible choice
    counts as the part's first one, and in `info["clipped"]`.

    | Choice of `serves` | Name | Meaning |
    |---|---|---|
    | 0 | `keep` | stay with the LLM; its groups by deadline |
    | 1 | `mistral-7b/interactive/first` | put ahead: of these the one with the earliest deadline |
    | 2 | `mistral-7b/interactive/next` | put ahead: of these the next one whose deadline has not passed |
    | 3 | `mistral-7b/batch-1/first` | put ahead: of these the one with the earliest deadline |
    | 4 | `mistral-7b/batch-1/next` | put ahead: of these the next one whose deadline has not passed |
    | 5 | `mistral-7b/batch-2/first` | put ahead: of these the one with the earliest deadline |
    | 6 | `mistral-7b/batch-2/next` | put ahead: of these the next one whose deadline has not passed |
    | 7 | `vicuna-13b/interactive/first` | put ahead: of these the one with the earliest deadline |
    | 8 | `vicuna-13b/interactive/next` | put ahead: of these the next one whose deadline has not passed |
    | 9 | `vicuna-13b/batch-1/first` | put ahead: of these the one with the earliest deadline |
    | 10 | `vicuna-13b/batch-1/next` | put ahead: of these the next one whose deadline has not passed |
    | 11 | `vicuna-13b/batch-2/first` | put ahead: of these the one with the earliest deadline |
    | 12 | `vicuna-13b/batch-2/next` | put ahead: of these the next one whose deadline has not passed |
    | 13 | `vicuna-13b@a/interactive/first` | put ahead: of these the one with the earliest deadline |
    | 14 | `vicuna-13b@a/interactive/next` | put ahead: of these the next one whose deadline has not passed |
    | 15 | `vicuna-13b@a/batch-1/first` | put ahead: of these the one with the earliest deadline |
    | 16 | `vicuna-13b@a/batch-1/next` | put ahead: of these the next one whose deadline has not passed |
    | 17 | `vicuna-13b@a/batch-2/first` | put ahead: of these the one with the earliest deadline |
    | 18 | `vicuna-13b@a/batch-2/next` | put ahead: of these the next one whose deadline has not passed |

    `make_way`: with `evict`, requests of a group that comes earlier in the list evict running ones of
    later groups when they do not fit beside them. The KV cache goes to host memory beside the iterations,
    and comes back. A swap flushes what runs, and its KV is lost. With `finish`, what runs ends first.

    ## Observation Space

    `Box`, float32, dimensionless, on fixed scales, clipped to its bounds. "Expected" is the mean of the
    scenario; a window is the last control interval. `env.unwrapped.observation_entries` and
    `action_choices` list what the tables of docs/environments list.

    Entry 0 counts to the horizon, which no service has; `observation` without the block `clock` leaves it
    out. No other entry does (`tests/test_leaks.py`). To stop serving early does not pay all the same
    (`tests/test_anti_cheat_worlds.py`).

    ## Rewards

    Minus the cost of the interval (`llmscale_env.control.reward`), the sum of

    - `gpu`: GPU-seconds held over those of all four GPUs: 1 per step, since all are held all the time;
    - `violations`: 10 x the sum over classes of requests that became certain to miss a target over the
      requests *expected* per interval;
    - `loads`: 0.02 per instance started (swaps are not starts: they cost time);
    - `leftover`: at the horizon, the GPU-seconds that serving the unfinished requests one by one would
      take, in the unit of `gpu`.

    Each request is charged at most once, when its violation becomes certain. `info["reward_parts"]` has
    the four with their sign.

    ## Starting State

    Two instances have Mistral 7B, one has Vicuna 13B, one its fine-tuned version; host memory holds the
    same; nothing waits. The requests of the episode are drawn from `self.np_random`: one seed, one
    episode, whatever the agent does.

    ## Episode End

    Truncated after 1,800 s (360 decisions). There is no termination.

    ## Arguments

    - `scenario="multi-model-queue"`: name, YAML file or `Scenario`. It needs at least two group queues
      for every LLM and class (`fleet.group_queues`);
    - `overrides={}`: its fields by dotted path, such as `{"workload.rate_scale": 0.8}`, or
      `{"fleet.pools.gpu-0.mtbf_s": 900.0, "fleet.pools.gpu-0.repair_s": 60.0}`: that GPU then fails at
      random, what ran there starts again, and its action is masked until it is back;

    All others are those of `ServingEnv`.

    ## Information

    `metrics` has `queue/groups` and `swaps` besides.

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
