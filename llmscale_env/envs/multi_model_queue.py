"""`llmscale/MultiModelQueue-v0`: requests of several LLMs wait for a few GPUs, as in QLM."""

from __future__ import annotations

from llmscale_env.envs.base import ServingEnv, ServingVectorEnv


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

    | Num | Part | Choices |
    |---|---|---|
    | 0 | `gpu-0/serves` | as listed below |
    | 1 | `gpu-1/serves` | as listed below |
    | 2 | `gpu-2/serves` | as listed below |
    | 3 | `gpu-3/serves` | as listed below |
    | 4 | `gpu-0/make_way` | finish, evict |
    | 5 | `gpu-1/make_way` | finish, evict |
    | 6 | `gpu-2/make_way` | finish, evict |
    | 7 | `gpu-3/make_way` | finish, evict |

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
    later groups when they do not fit beside them (the KV cache goes to host memory beside the
    iterations, and comes back), and a swap flushes what runs (KV lost); with `finish`, what runs ends
    first.

    ## Observation Space

    `Box`, float32, dimensionless, on fixed scales, clipped to its bounds. "Expected" is the mean of the
    scenario; a window is the last control interval.

    Entry 0 counts to the horizon, which no service has; `observation` without the block `clock` leaves it
    out. No other entry does (`tests/test_leaks.py`). To stop serving early does not pay all the same
    (`tests/test_anti_cheat_worlds.py`).

    | Num | Entry | Min | Max | Meaning |
    |---|---|---|---|---|
    | 0 | `clock/elapsed` | 0 | 1 | time / horizon |
    | 1 | `interactive/arrivals` | 0 | 1 | arrivals in the interval, log scale to 16 x expected |
    | 2 | `interactive/trend_60s` | -1 | 1 | log2(interval / mean of 60 s) / 4 |
    | 3 | `interactive/trend_300s` | -1 | 1 | log2(interval / mean of 300 s) / 4 |
    | 4 | `batch-1/arrivals` | 0 | 1 | arrivals in the interval, log scale to 16 x expected |
    | 5 | `batch-1/trend_60s` | -1 | 1 | log2(interval / mean of 60 s) / 4 |
    | 6 | `batch-1/trend_300s` | -1 | 1 | log2(interval / mean of 300 s) / 4 |
    | 7 | `batch-2/arrivals` | 0 | 1 | arrivals in the interval, log scale to 16 x expected |
    | 8 | `batch-2/trend_60s` | -1 | 1 | log2(interval / mean of 60 s) / 4 |
    | 9 | `batch-2/trend_300s` | -1 | 1 | log2(interval / mean of 300 s) / 4 |
    | 10 | `interactive/ttft_mean` | 0 | 1 | mean TTFT / target / 2 |
    | 11 | `interactive/ttft_max` | 0 | 1 | largest TTFT / target / 2 |
    | 12 | `interactive/itl_mean` | 0 | 1 | mean ITL / target / 2 |
    | 13 | `interactive/itl_max` | 0 | 1 | largest mean ITL of a request / target / 4 |
    | 14 | `interactive/violations` | 0 | 1 | violations / (violations + on time) |
    | 15 | `batch-1/ttft_mean` | 0 | 1 | mean TTFT / target / 2 |
    | 16 | `batch-1/ttft_max` | 0 | 1 | largest TTFT / target / 2 |
    | 17 | `batch-1/itl_mean` | 0 | 1 | mean ITL / target / 2 |
    | 18 | `batch-1/itl_max` | 0 | 1 | largest mean ITL of a request / target / 4 |
    | 19 | `batch-1/violations` | 0 | 1 | violations / (violations + on time) |
    | 20 | `batch-2/ttft_mean` | 0 | 1 | mean TTFT / target / 2 |
    | 21 | `batch-2/ttft_max` | 0 | 1 | largest TTFT / target / 2 |
    | 22 | `batch-2/itl_mean` | 0 | 1 | mean ITL / target / 2 |
    | 23 | `batch-2/itl_max` | 0 | 1 | largest mean ITL of a request / target / 4 |
    | 24 | `batch-2/violations` | 0 | 1 | violations / (violations + on time) |
    | 25 | `mistral-7b/interactive/first/requests` | 0 | 1 | waiting requests, log scale to 1024 |
    | 26 | `mistral-7b/interactive/first/tokens` | 0 | 1 | their predicted output tokens, log scale to 10^6 |
    | 27 | `mistral-7b/interactive/first/slack` | -1 | 1 | time to the deadline / target; 1 without a group |
    | 28 | `mistral-7b/interactive/first/running` | 0 | 1 | requests of it that run, log scale to 256 |
    | 29 | `mistral-7b/interactive/first/served_by` | 0 | 1 | instances that have it at the head / instances |
    | 30 | `mistral-7b/interactive/next/requests` | 0 | 1 | waiting requests, log scale to 1024 |
    | 31 | `mistral-7b/interactive/next/tokens` | 0 | 1 | their predicted output tokens, log scale to 10^6 |
    | 32 | `mistral-7b/interactive/next/slack` | -1 | 1 | time to the deadline / target; 1 without a group |
    | 33 | `mistral-7b/interactive/next/running` | 0 | 1 | requests of it that run, log scale to 256 |
    | 34 | `mistral-7b/interactive/next/served_by` | 0 | 1 | instances that have it at the head / instances |
    | 35 | `mistral-7b/batch-1/first/requests` | 0 | 1 | waiting requests, log scale to 1024 |
    | 36 | `mistral-7b/batch-1/first/tokens` | 0 | 1 | their predicted output tokens, log scale to 10^6 |
    | 37 | `mistral-7b/batch-1/first/slack` | -1 | 1 | time to the deadline / target; 1 without a group |
    | 38 | `mistral-7b/batch-1/first/running` | 0 | 1 | requests of it that run, log scale to 256 |
    | 39 | `mistral-7b/batch-1/first/served_by` | 0 | 1 | instances that have it at the head / instances |
    | 40 | `mistral-7b/batch-1/next/requests` | 0 | 1 | waiting requests, log scale to 1024 |
    | 41 | `mistral-7b/batch-1/next/tokens` | 0 | 1 | their predicted output tokens, log scale to 10^6 |
    | 42 | `mistral-7b/batch-1/next/slack` | -1 | 1 | time to the deadline / target; 1 without a group |
    | 43 | `mistral-7b/batch-1/next/running` | 0 | 1 | requests of it that run, log scale to 256 |
    | 44 | `mistral-7b/batch-1/next/served_by` | 0 | 1 | instances that have it at the head / instances |
    | 45 | `mistral-7b/batch-2/first/requests` | 0 | 1 | waiting requests, log scale to 1024 |
    | 46 | `mistral-7b/batch-2/first/tokens` | 0 | 1 | their predicted output tokens, log scale to 10^6 |
    | 47 | `mistral-7b/batch-2/first/slack` | -1 | 1 | time to the deadline / target; 1 without a group |
    | 48 | `mistral-7b/batch-2/first/running` | 0 | 1 | requests of it that run, log scale to 256 |
    | 49 | `mistral-7b/batch-2/first/served_by` | 0 | 1 | instances that have it at the head / instances |
    | 50 | `mistral-7b/batch-2/next/requests` | 0 | 1 | waiting requests, log scale to 1024 |
    | 51 | `mistral-7b/batch-2/next/tokens` | 0 | 1 | their predicted output tokens, log scale to 10^6 |
    | 52 | `mistral-7b/batch-2/next/slack` | -1 | 1 | time to the deadline / target; 1 without a group |
    | 53 | `mistral-7b/batch-2/next/running` | 0 | 1 | requests of it that run, log scale to 256 |
    | 54 | `mistral-7b/batch-2/next/served_by` | 0 | 1 | instances that have it at the head / instances |
    | 55 | `vicuna-13b/interactive/first/requests` | 0 | 1 | waiting requests, log scale to 1024 |
    | 56 | `vicuna-13b/interactive/first/tokens` | 0 | 1 | their predicted output tokens, log scale to 10^6 |
    | 57 | `vicuna-13b/interactive/first/slack` | -1 | 1 | time to the deadline / target; 1 without a group |
    | 58 | `vicuna-13b/interactive/first/running` | 0 | 1 | requests of it that run, log scale to 256 |
    | 59 | `vicuna-13b/interactive/first/served_by` | 0 | 1 | instances that have it at the head / instances |
    | 60 | `vicuna-13b/interactive/next/requests` | 0 | 1 | waiting requests, log scale to 1024 |
    | 61 | `vicuna-13b/interactive/next/tokens` | 0 | 1 | their predicted output tokens, log scale to 10^6 |
    | 62 | `vicuna-13b/interactive/next/slack` | -1 | 1 | time to the deadline / target; 1 without a group |
    | 63 | `vicuna-13b/interactive/next/running` | 0 | 1 | requests of it that run, log scale to 256 |
    | 64 | `vicuna-13b/interactive/next/served_by` | 0 | 1 | instances that have it at the head / instances |
    | 65 | `vicuna-13b/batch-1/first/requests` | 0 | 1 | waiting requests, log scale to 1024 |
    | 66 | `vicuna-13b/batch-1/first/tokens` | 0 | 1 | their predicted output tokens, log scale to 10^6 |
    | 67 | `vicuna-13b/batch-1/first/slack` | -1 | 1 | time to the deadline / target; 1 without a group |
    | 68 | `vicuna-13b/batch-1/first/running` | 0 | 1 | requests of it that run, log scale to 256 |
    | 69 | `vicuna-13b/batch-1/first/served_by` | 0 | 1 | instances that have it at the head / instances |
    | 70 | `vicuna-13b/batch-1/next/requests` | 0 | 1 | waiting requests, log scale to 1024 |
    | 71 | `vicuna-13b/batch-1/next/tokens` | 0 | 1 | their predicted output tokens, log scale to 10^6 |
    | 72 | `vicuna-13b/batch-1/next/slack` | -1 | 1 | time to the deadline / target; 1 without a group |
    | 73 | `vicuna-13b/batch-1/next/running` | 0 | 1 | requests of it that run, log scale to 256 |
    | 74 | `vicuna-13b/batch-1/next/served_by` | 0 | 1 | instances that have it at the head / instances |
    | 75 | `vicuna-13b/batch-2/first/requests` | 0 | 1 | waiting requests, log scale to 1024 |
    | 76 | `vicuna-13b/batch-2/first/tokens` | 0 | 1 | their predicted output tokens, log scale to 10^6 |
    | 77 | `vicuna-13b/batch-2/first/slack` | -1 | 1 | time to the deadline / target; 1 without a group |
    | 78 | `vicuna-13b/batch-2/first/running` | 0 | 1 | requests of it that run, log scale to 256 |
    | 79 | `vicuna-13b/batch-2/first/served_by` | 0 | 1 | instances that have it at the head / instances |
    | 80 | `vicuna-13b/batch-2/next/requests` | 0 | 1 | waiting requests, log scale to 1024 |
    | 81 | `vicuna-13b/batch-2/next/tokens` | 0 | 1 | their predicted output tokens, log scale to 10^6 |
    | 82 | `vicuna-13b/batch-2/next/slack` | -1 | 1 | time to the deadline / target; 1 without a group |
    | 83 | `vicuna-13b/batch-2/next/running` | 0 | 1 | requests of it that run, log scale to 256 |
    | 84 | `vicuna-13b/batch-2/next/served_by` | 0 | 1 | instances that have it at the head / instances |
    | 85 | `vicuna-13b@a/interactive/first/requests` | 0 | 1 | waiting requests, log scale to 1024 |
    | 86 | `vicuna-13b@a/interactive/first/tokens` | 0 | 1 | their predicted output tokens, log scale to 10^6 |
    | 87 | `vicuna-13b@a/interactive/first/slack` | -1 | 1 | time to the deadline / target; 1 without a group |
    | 88 | `vicuna-13b@a/interactive/first/running` | 0 | 1 | requests of it that run, log scale to 256 |
    | 89 | `vicuna-13b@a/interactive/first/served_by` | 0 | 1 | instances that have it at the head / instances |
    | 90 | `vicuna-13b@a/interactive/next/requests` | 0 | 1 | waiting requests, log scale to 1024 |
    | 91 | `vicuna-13b@a/interactive/next/tokens` | 0 | 1 | their predicted output tokens, log scale to 10^6 |
    | 92 | `vicuna-13b@a/interactive/next/slack` | -1 | 1 | time to the deadline / target; 1 without a group |
    | 93 | `vicuna-13b@a/interactive/next/running` | 0 | 1 | requests of it that run, log scale to 256 |
    | 94 | `vicuna-13b@a/interactive/next/served_by` | 0 | 1 | instances that have it at the head / instances |
    | 95 | `vicuna-13b@a/batch-1/first/requests` | 0 | 1 | waiting requests, log scale to 1024 |
    | 96 | `vicuna-13b@a/batch-1/first/tokens` | 0 | 1 | their predicted output tokens, log scale to 10^6 |
    | 97 | `vicuna-13b@a/batch-1/first/slack` | -1 | 1 | time to the deadline / target; 1 without a group |
    | 98 | `vicuna-13b@a/batch-1/first/running` | 0 | 1 | requests of it that run, log scale to 256 |
    | 99 | `vicuna-13b@a/batch-1/first/served_by` | 0 | 1 | instances that have it at the head / instances |
    | 100 | `vicuna-13b@a/batch-1/next/requests` | 0 | 1 | waiting requests, log scale to 1024 |
    | 101 | `vicuna-13b@a/batch-1/next/tokens` | 0 | 1 | their predicted output tokens, log scale to 10^6 |
    | 102 | `vicuna-13b@a/batch-1/next/slack` | -1 | 1 | time to the deadline / target; 1 without a group |
    | 103 | `vicuna-13b@a/batch-1/next/running` | 0 | 1 | requests of it that run, log scale to 256 |
    | 104 | `vicuna-13b@a/batch-1/next/served_by` | 0 | 1 | instances that have it at the head / instances |
    | 105 | `vicuna-13b@a/batch-2/first/requests` | 0 | 1 | waiting requests, log scale to 1024 |
    | 106 | `vicuna-13b@a/batch-2/first/tokens` | 0 | 1 | their predicted output tokens, log scale to 10^6 |
    | 107 | `vicuna-13b@a/batch-2/first/slack` | -1 | 1 | time to the deadline / target; 1 without a group |
    | 108 | `vicuna-13b@a/batch-2/first/running` | 0 | 1 | requests of it that run, log scale to 256 |
    | 109 | `vicuna-13b@a/batch-2/first/served_by` | 0 | 1 | instances that have it at the head / instances |
    | 110 | `vicuna-13b@a/batch-2/next/requests` | 0 | 1 | waiting requests, log scale to 1024 |
    | 111 | `vicuna-13b@a/batch-2/next/tokens` | 0 | 1 | their predicted output tokens, log scale to 10^6 |
    | 112 | `vicuna-13b@a/batch-2/next/slack` | -1 | 1 | time to the deadline / target; 1 without a group |
    | 113 | `vicuna-13b@a/batch-2/next/running` | 0 | 1 | requests of it that run, log scale to 256 |
    | 114 | `vicuna-13b@a/batch-2/next/served_by` | 0 | 1 | instances that have it at the head / instances |
    | 115 | `mistral-7b/others/requests` | 0 | 1 | waiting in other groups, log scale to 4096 |
    | 116 | `mistral-7b/others/tokens` | 0 | 1 | their predicted output tokens, log scale to 10^7 |
    | 117 | `mistral-7b/others/late` | 0 | 1 | share of them whose deadline has passed |
    | 118 | `vicuna-13b/others/requests` | 0 | 1 | waiting in other groups, log scale to 4096 |
    | 119 | `vicuna-13b/others/tokens` | 0 | 1 | their predicted output tokens, log scale to 10^7 |
    | 120 | `vicuna-13b/others/late` | 0 | 1 | share of them whose deadline has passed |
    | 121 | `vicuna-13b@a/others/requests` | 0 | 1 | waiting in other groups, log scale to 4096 |
    | 122 | `vicuna-13b@a/others/tokens` | 0 | 1 | their predicted output tokens, log scale to 10^7 |
    | 123 | `vicuna-13b@a/others/late` | 0 | 1 | share of them whose deadline has passed |
    | 124 | `gpu-0/active` | 0 | 1 | 1: it serves |
    | 125 | `gpu-0/ready_in` | 0 | 1 | time until it does / 60 s, 0 if it does |
    | 126 | `gpu-0/kv` | 0 | 1 | KV use / capacity |
    | 127 | `gpu-0/has/mistral-7b` | 0 | 1 | 1: has this LLM, or loads it |
    | 128 | `gpu-0/has/vicuna-13b` | 0 | 1 | 1: has this LLM, or loads it |
    | 129 | `gpu-0/has/vicuna-13b@a` | 0 | 1 | 1: has this LLM, or loads it |
    | 130 | `gpu-0/next/mistral-7b` | 0 | 1 | 1: its list is of this LLM |
    | 131 | `gpu-0/next/vicuna-13b` | 0 | 1 | 1: its list is of this LLM |
    | 132 | `gpu-0/next/vicuna-13b@a` | 0 | 1 | 1: its list is of this LLM |
    | 133 | `gpu-0/weights/mistral-7b` | 0 | 1 | 1: in host memory; less: on their way; 0: not |
    | 134 | `gpu-0/weights/vicuna-13b` | 0 | 1 | 1: in host memory; less: on their way; 0: not |
    | 135 | `gpu-0/weights/vicuna-13b@a` | 0 | 1 | 1: in host memory; less: on their way; 0: not |
    | 136 | `gpu-0/running/interactive` | 0 | 1 | running requests / largest batch limit |
    | 137 | `gpu-0/running/batch-1` | 0 | 1 | running requests / largest batch limit |
    | 138 | `gpu-0/running/batch-2` | 0 | 1 | running requests / largest batch limit |
    | 139 | `gpu-1/active` | 0 | 1 | 1: it serves |
    | 140 | `gpu-1/ready_in` | 0 | 1 | time until it does / 60 s, 0 if it does |
    | 141 | `gpu-1/kv` | 0 | 1 | KV use / capacity |
    | 142 | `gpu-1/has/mistral-7b` | 0 | 1 | 1: has this LLM, or loads it |
    | 143 | `gpu-1/has/vicuna-13b` | 0 | 1 | 1: has this LLM, or loads it |
    | 144 | `gpu-1/has/vicuna-13b@a` | 0 | 1 | 1: has this LLM, or loads it |
    | 145 | `gpu-1/next/mistral-7b` | 0 | 1 | 1: its list is of this LLM |
    | 146 | `gpu-1/next/vicuna-13b` | 0 | 1 | 1: its list is of this LLM |
    | 147 | `gpu-1/next/vicuna-13b@a` | 0 | 1 | 1: its list is of this LLM |
    | 148 | `gpu-1/weights/mistral-7b` | 0 | 1 | 1: in host memory; less: on their way; 0: not |
    | 149 | `gpu-1/weights/vicuna-13b` | 0 | 1 | 1: in host memory; less: on their way; 0: not |
    | 150 | `gpu-1/weights/vicuna-13b@a` | 0 | 1 | 1: in host memory; less: on their way; 0: not |
    | 151 | `gpu-1/running/interactive` | 0 | 1 | running requests / largest batch limit |
    | 152 | `gpu-1/running/batch-1` | 0 | 1 | running requests / largest batch limit |
    | 153 | `gpu-1/running/batch-2` | 0 | 1 | running requests / largest batch limit |
    | 154 | `gpu-2/active` | 0 | 1 | 1: it serves |
    | 155 | `gpu-2/ready_in` | 0 | 1 | time until it does / 60 s, 0 if it does |
    | 156 | `gpu-2/kv` | 0 | 1 | KV use / capacity |
    | 157 | `gpu-2/has/mistral-7b` | 0 | 1 | 1: has this LLM, or loads it |
    | 158 | `gpu-2/has/vicuna-13b` | 0 | 1 | 1: has this LLM, or loads it |
    | 159 | `gpu-2/has/vicuna-13b@a` | 0 | 1 | 1: has this LLM, or loads it |
    | 160 | `gpu-2/next/mistral-7b` | 0 | 1 | 1: its list is of this LLM |
    | 161 | `gpu-2/next/vicuna-13b` | 0 | 1 | 1: its list is of this LLM |
    | 162 | `gpu-2/next/vicuna-13b@a` | 0 | 1 | 1: its list is of this LLM |
    | 163 | `gpu-2/weights/mistral-7b` | 0 | 1 | 1: in host memory; less: on their way; 0: not |
    | 164 | `gpu-2/weights/vicuna-13b` | 0 | 1 | 1: in host memory; less: on their way; 0: not |
    | 165 | `gpu-2/weights/vicuna-13b@a` | 0 | 1 | 1: in host memory; less: on their way; 0: not |
    | 166 | `gpu-2/running/interactive` | 0 | 1 | running requests / largest batch limit |
    | 167 | `gpu-2/running/batch-1` | 0 | 1 | running requests / largest batch limit |
    | 168 | `gpu-2/running/batch-2` | 0 | 1 | running requests / largest batch limit |
    | 169 | `gpu-3/active` | 0 | 1 | 1: it serves |
    | 170 | `gpu-3/ready_in` | 0 | 1 | time until it does / 60 s, 0 if it does |
    | 171 | `gpu-3/kv` | 0 | 1 | KV use / capacity |
    | 172 | `gpu-3/has/mistral-7b` | 0 | 1 | 1: has this LLM, or loads it |
    | 173 | `gpu-3/has/vicuna-13b` | 0 | 1 | 1: has this LLM, or loads it |
    | 174 | `gpu-3/has/vicuna-13b@a` | 0 | 1 | 1: has this LLM, or loads it |
    | 175 | `gpu-3/next/mistral-7b` | 0 | 1 | 1: its list is of this LLM |
    | 176 | `gpu-3/next/vicuna-13b` | 0 | 1 | 1: its list is of this LLM |
    | 177 | `gpu-3/next/vicuna-13b@a` | 0 | 1 | 1: its list is of this LLM |
    | 178 | `gpu-3/weights/mistral-7b` | 0 | 1 | 1: in host memory; less: on their way; 0: not |
    | 179 | `gpu-3/weights/vicuna-13b` | 0 | 1 | 1: in host memory; less: on their way; 0: not |
    | 180 | `gpu-3/weights/vicuna-13b@a` | 0 | 1 | 1: in host memory; less: on their way; 0: not |
    | 181 | `gpu-3/running/interactive` | 0 | 1 | running requests / largest batch limit |
    | 182 | `gpu-3/running/batch-1` | 0 | 1 | running requests / largest batch limit |
    | 183 | `gpu-3/running/batch-2` | 0 | 1 | running requests / largest batch limit |
    | 184 | `last/gpu-0/serves` | 0 | 1 | choice / (choices - 1); 0 at the start |
    | 185 | `last/gpu-1/serves` | 0 | 1 | choice / (choices - 1); 0 at the start |
    | 186 | `last/gpu-2/serves` | 0 | 1 | choice / (choices - 1); 0 at the start |
    | 187 | `last/gpu-3/serves` | 0 | 1 | choice / (choices - 1); 0 at the start |
    | 188 | `last/gpu-0/make_way` | 0 | 1 | choice / (choices - 1); 0 at the start |
    | 189 | `last/gpu-1/make_way` | 0 | 1 | choice / (choices - 1); 0 at the start |
    | 190 | `last/gpu-2/make_way` | 0 | 1 | choice / (choices - 1); 0 at the start |
    | 191 | `last/gpu-3/make_way` | 0 | 1 | choice / (choices - 1); 0 at the start |

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
    - `observation`, `action`: names of blocks (`llmscale_env.envs.observations.BLOCKS`) and heads
      (`llmscale_env.envs.actions.HEADS`) in place of the default ones;
    - `forecaster="ewma"`: what `view()` shows of the future (`llmscale_env.control.forecast`);
    - `reference`: a policy whose instance counts the head `residual` multiplies; `shaping`: weight of a term
      of the reward for requests that will be late (docs/forms.md);
    - `engine="fast"`: or `"reference"`, the simulator in readable Python, with the same numbers
      (docs/architecture.md);
    - `render_mode`: "ansi" (a table of the cluster now) or "rgb_array" (arrivals, queues, instances and
      attainment over the episode so far).

    The vectorised form (`gym.make_vec(..., vectorization_mode="vector_entry_point")`) takes `num_envs`
    and `threads` besides, advances all episodes in one call, and resets a finished one in the same
    step. Episode `e` of it equals a single environment reset with `seed + e`.

    ## Information

    - `metrics`: of the episode so far: `CLASS/slo_attainment`, `CLASS/violations`, `CLASS/arrived`,
      `joint/slo_attainment`, `gpu_hours`, `loads`, `preemptions`, `evictions`, `POOL/active`,
      `POOL/loading`, `POOL/running`, `POOL/waiting`, `POOL/batch_limit`, `queue/QUEUE`, `queue/groups`,
      `swaps`, `reward`;
    - `reward_parts`, `clipped`, `action_mask`: see above;
    - `cost`: violations of the interval, for constrained RL, and `cost_by_class`;
    - `episode_summary`: the metrics at the end of an episode, attainment as the share of all arrivals
      (in `metrics`, of those whose fate is known).

    `set_weights(gpu=, violations=, loads=)` moves the weights of the reward's parts, `violations` for all
    classes or by class, as a Lagrangian needs; `metrics` keeps the reward by the scenario's own.

    `save_state()`, `restore_state(saved)` and `fork()` copy an episode in progress; `view()` shows it
    as a handwritten policy sees it.

    ## References

    Patke et al., "Queue Management for SLO-Oriented Large Language Model Serving" (SoCC 2024).

    ## Version History

    - v0: first version.
    """  # noqa: E501

    scenario_name = "multi-model-queue"
    observation = ("clock", "arrivals", "latency", "groups", "instances", "last_action")
    action = ("group_order", "make_way")


class MultiModelQueueVectorEnv(ServingVectorEnv):
    """Many episodes of `llmscale/MultiModelQueue-v0` advanced in one call: see `MultiModelQueueEnv`."""

    scenario_name = MultiModelQueueEnv.scenario_name
    observation = MultiModelQueueEnv.observation
    action = MultiModelQueueEnv.action
