"""`llmscale/MultiRegion-v1`: LLMs in several regions on spot VMs, as in SageServe."""

from __future__ import annotations

from llmscale_env.envs.base import ServingEnv, ServingVectorEnv


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

    | Num | Part | Choices |
    |---|---|---|
    | 0 | `bloom-us-west/instances` | -4, -2, -1, 0, +1, +2, +4 |
    | 1 | `bloom-us-west/rule` | none, target, reactive |
    | 2 | `bloom-us-central/instances` | -4, -2, -1, 0, +1, +2, +4 |
    | 3 | `bloom-us-central/rule` | none, target, reactive |
    | 4 | `bloom-us-east/instances` | -4, -2, -1, 0, +1, +2, +4 |
    | 5 | `bloom-us-east/rule` | none, target, reactive |
    | 6 | `llama2-us-west/instances` | -4, -2, -1, 0, +1, +2, +4 |
    | 7 | `llama2-us-west/rule` | none, target, reactive |
    | 8 | `llama2-us-central/instances` | -4, -2, -1, 0, +1, +2, +4 |
    | 9 | `llama2-us-central/rule` | none, target, reactive |
    | 10 | `llama2-us-east/instances` | -4, -2, -1, 0, +1, +2, +4 |
    | 11 | `llama2-us-east/rule` | none, target, reactive |
    | 12 | `us-west/threshold` | 0, 0.3, 0.5, 0.7, 0.9, 1.1 |
    | 13 | `us-west/first` | us-west, us-central, us-east |
    | 14 | `us-central/threshold` | 0, 0.3, 0.5, 0.7, 0.9, 1.1 |
    | 15 | `us-central/first` | us-west, us-central, us-east |
    | 16 | `us-east/threshold` | 0, 0.3, 0.5, 0.7, 0.9, 1.1 |
    | 17 | `us-east/first` | us-west, us-central, us-east |
    | 18 | `bloom-2h/us-west/release` | hold, careful, usual, eager |
    | 19 | `bloom-2h/us-central/release` | hold, careful, usual, eager |
    | 20 | `bloom-2h/us-east/release` | hold, careful, usual, eager |
    | 21 | `bloom-6h/us-west/release` | hold, careful, usual, eager |
    | 22 | `bloom-6h/us-central/release` | hold, careful, usual, eager |
    | 23 | `bloom-6h/us-east/release` | hold, careful, usual, eager |
    | 24 | `bloom-12h/us-west/release` | hold, careful, usual, eager |
    | 25 | `bloom-12h/us-central/release` | hold, careful, usual, eager |
    | 26 | `bloom-12h/us-east/release` | hold, careful, usual, eager |
    | 27 | `llama2-2h/us-west/release` | hold, careful, usual, eager |
    | 28 | `llama2-2h/us-central/release` | hold, careful, usual, eager |
    | 29 | `llama2-2h/us-east/release` | hold, careful, usual, eager |
    | 30 | `llama2-6h/us-west/release` | hold, careful, usual, eager |
    | 31 | `llama2-6h/us-central/release` | hold, careful, usual, eager |
    | 32 | `llama2-6h/us-east/release` | hold, careful, usual, eager |
    | 33 | `llama2-12h/us-west/release` | hold, careful, usual, eager |
    | 34 | `llama2-12h/us-central/release` | hold, careful, usual, eager |
    | 35 | `llama2-12h/us-east/release` | hold, careful, usual, eager |

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

    `Box`, float32, dimensionless, on fixed scales, clipped to its bounds. "Expected" is the mean of
    the scenario by LLM and region; an interval is the last one; tokens are input and predicted output
    tokens. `LLM/REGION` is about the clients of a region, wherever they are served, `POOL` about who
    serves there; `load`, `trend` and forecasts are of interactive requests. Forecasts are of a whole
    interval that ends so far ahead, by Holt-Winters with a season of a day, which knows the day before.

    | Num | Entry | Min | Max | Meaning |
    |---|---|---|---|---|
    | 0 | `clock/sine` | -1 | 1 | sine of the time of day, a day being a turn |
    | 1 | `clock/cosine` | -1 | 1 | its cosine |
    | 2 | `clock/monday` | 0 | 1 | 1: it is this day |
    | 3 | `clock/tuesday` | 0 | 1 | 1: it is this day |
    | 4 | `clock/wednesday` | 0 | 1 | 1: it is this day |
    | 5 | `clock/thursday` | 0 | 1 | 1: it is this day |
    | 6 | `clock/friday` | 0 | 1 | 1: it is this day |
    | 7 | `clock/saturday` | 0 | 1 | 1: it is this day |
    | 8 | `clock/sunday` | 0 | 1 | 1: it is this day |
    | 9 | `bloom-176b/us-west/load` | 0 | 1 | tokens/s / expected, log scale to 16 |
    | 10 | `bloom-176b/us-west/trend` | -1 | 1 | log2(interval / mean of the last hour) / 4 |
    | 11 | `bloom-176b/us-west/background` | 0 | 1 | of the last hour, that can wait, log scale to 16 |
    | 12 | `bloom-176b/us-west/forecast_0` | 0 | 1 | forecast 900 s ahead, log scale to 16 |
    | 13 | `bloom-176b/us-west/error_0` | 0 | 1 | its recent weighted absolute percentage error / 2 |
    | 14 | `bloom-176b/us-west/forecast_1` | 0 | 1 | forecast 3600 s ahead, log scale to 16 |
    | 15 | `bloom-176b/us-west/error_1` | 0 | 1 | its recent weighted absolute percentage error / 2 |
    | 16 | `bloom-176b/us-central/load` | 0 | 1 | tokens/s / expected, log scale to 16 |
    | 17 | `bloom-176b/us-central/trend` | -1 | 1 | log2(interval / mean of the last hour) / 4 |
    | 18 | `bloom-176b/us-central/background` | 0 | 1 | of the last hour, that can wait, log scale to 16 |
    | 19 | `bloom-176b/us-central/forecast_0` | 0 | 1 | forecast 900 s ahead, log scale to 16 |
    | 20 | `bloom-176b/us-central/error_0` | 0 | 1 | its recent weighted absolute percentage error / 2 |
    | 21 | `bloom-176b/us-central/forecast_1` | 0 | 1 | forecast 3600 s ahead, log scale to 16 |
    | 22 | `bloom-176b/us-central/error_1` | 0 | 1 | its recent weighted absolute percentage error / 2 |
    | 23 | `bloom-176b/us-east/load` | 0 | 1 | tokens/s / expected, log scale to 16 |
    | 24 | `bloom-176b/us-east/trend` | -1 | 1 | log2(interval / mean of the last hour) / 4 |
    | 25 | `bloom-176b/us-east/background` | 0 | 1 | of the last hour, that can wait, log scale to 16 |
    | 26 | `bloom-176b/us-east/forecast_0` | 0 | 1 | forecast 900 s ahead, log scale to 16 |
    | 27 | `bloom-176b/us-east/error_0` | 0 | 1 | its recent weighted absolute percentage error / 2 |
    | 28 | `bloom-176b/us-east/forecast_1` | 0 | 1 | forecast 3600 s ahead, log scale to 16 |
    | 29 | `bloom-176b/us-east/error_1` | 0 | 1 | its recent weighted absolute percentage error / 2 |
    | 30 | `llama-2-70b/us-west/load` | 0 | 1 | tokens/s / expected, log scale to 16 |
    | 31 | `llama-2-70b/us-west/trend` | -1 | 1 | log2(interval / mean of the last hour) / 4 |
    | 32 | `llama-2-70b/us-west/background` | 0 | 1 | of the last hour, that can wait, log scale to 16 |
    | 33 | `llama-2-70b/us-west/forecast_0` | 0 | 1 | forecast 900 s ahead, log scale to 16 |
    | 34 | `llama-2-70b/us-west/error_0` | 0 | 1 | its recent weighted absolute percentage error / 2 |
    | 35 | `llama-2-70b/us-west/forecast_1` | 0 | 1 | forecast 3600 s ahead, log scale to 16 |
    | 36 | `llama-2-70b/us-west/error_1` | 0 | 1 | its recent weighted absolute percentage error / 2 |
    | 37 | `llama-2-70b/us-central/load` | 0 | 1 | tokens/s / expected, log scale to 16 |
    | 38 | `llama-2-70b/us-central/trend` | -1 | 1 | log2(interval / mean of the last hour) / 4 |
    | 39 | `llama-2-70b/us-central/background` | 0 | 1 | of the last hour, that can wait, log scale to 16 |
    | 40 | `llama-2-70b/us-central/forecast_0` | 0 | 1 | forecast 900 s ahead, log scale to 16 |
    | 41 | `llama-2-70b/us-central/error_0` | 0 | 1 | its recent weighted absolute percentage error / 2 |
    | 42 | `llama-2-70b/us-central/forecast_1` | 0 | 1 | forecast 3600 s ahead, log scale to 16 |
    | 43 | `llama-2-70b/us-central/error_1` | 0 | 1 | its recent weighted absolute percentage error / 2 |
    | 44 | `llama-2-70b/us-east/load` | 0 | 1 | tokens/s / expected, log scale to 16 |
    | 45 | `llama-2-70b/us-east/trend` | -1 | 1 | log2(interval / mean of the last hour) / 4 |
    | 46 | `llama-2-70b/us-east/background` | 0 | 1 | of the last hour, that can wait, log scale to 16 |
    | 47 | `llama-2-70b/us-east/forecast_0` | 0 | 1 | forecast 900 s ahead, log scale to 16 |
    | 48 | `llama-2-70b/us-east/error_0` | 0 | 1 | its recent weighted absolute percentage error / 2 |
    | 49 | `llama-2-70b/us-east/forecast_1` | 0 | 1 | forecast 3600 s ahead, log scale to 16 |
    | 50 | `llama-2-70b/us-east/error_1` | 0 | 1 | its recent weighted absolute percentage error / 2 |
    | 51 | `interactive/ttft_mean` | 0 | 1 | mean TTFT / target / 2 |
    | 52 | `interactive/ttft_max` | 0 | 1 | largest TTFT / target / 2 |
    | 53 | `interactive/itl_mean` | 0 | 1 | mean ITL / target / 2 |
    | 54 | `interactive/itl_max` | 0 | 1 | largest mean ITL of a request / target / 4 |
    | 55 | `interactive/violations` | 0 | 1 | violations / (violations + on time) |
    | 56 | `deferrable-2h/ttft_mean` | 0 | 1 | mean TTFT / target / 2 |
    | 57 | `deferrable-2h/ttft_max` | 0 | 1 | largest TTFT / target / 2 |
    | 58 | `deferrable-2h/itl_mean` | 0 | 1 | mean ITL / target / 2 |
    | 59 | `deferrable-2h/itl_max` | 0 | 1 | largest mean ITL of a request / target / 4 |
    | 60 | `deferrable-2h/violations` | 0 | 1 | violations / (violations + on time) |
    | 61 | `deferrable-6h/ttft_mean` | 0 | 1 | mean TTFT / target / 2 |
    | 62 | `deferrable-6h/ttft_max` | 0 | 1 | largest TTFT / target / 2 |
    | 63 | `deferrable-6h/itl_mean` | 0 | 1 | mean ITL / target / 2 |
    | 64 | `deferrable-6h/itl_max` | 0 | 1 | largest mean ITL of a request / target / 4 |
    | 65 | `deferrable-6h/violations` | 0 | 1 | violations / (violations + on time) |
    | 66 | `deferrable-12h/ttft_mean` | 0 | 1 | mean TTFT / target / 2 |
    | 67 | `deferrable-12h/ttft_max` | 0 | 1 | largest TTFT / target / 2 |
    | 68 | `deferrable-12h/itl_mean` | 0 | 1 | mean ITL / target / 2 |
    | 69 | `deferrable-12h/itl_max` | 0 | 1 | largest mean ITL of a request / target / 4 |
    | 70 | `deferrable-12h/violations` | 0 | 1 | violations / (violations + on time) |
    | 71 | `bloom-176b/us-west/ttft_p50` | 0 | 1 | median TTFT / target / 2; 0 without any |
    | 72 | `bloom-176b/us-west/ttft_p95` | 0 | 1 | 95th percentile of TTFT / target / 2; 0 without any |
    | 73 | `bloom-176b/us-central/ttft_p50` | 0 | 1 | median TTFT / target / 2; 0 without any |
    | 74 | `bloom-176b/us-central/ttft_p95` | 0 | 1 | 95th percentile of TTFT / target / 2; 0 without any |
    | 75 | `bloom-176b/us-east/ttft_p50` | 0 | 1 | median TTFT / target / 2; 0 without any |
    | 76 | `bloom-176b/us-east/ttft_p95` | 0 | 1 | 95th percentile of TTFT / target / 2; 0 without any |
    | 77 | `llama-2-70b/us-west/ttft_p50` | 0 | 1 | median TTFT / target / 2; 0 without any |
    | 78 | `llama-2-70b/us-west/ttft_p95` | 0 | 1 | 95th percentile of TTFT / target / 2; 0 without any |
    | 79 | `llama-2-70b/us-central/ttft_p50` | 0 | 1 | median TTFT / target / 2; 0 without any |
    | 80 | `llama-2-70b/us-central/ttft_p95` | 0 | 1 | 95th percentile of TTFT / target / 2; 0 without any |
    | 81 | `llama-2-70b/us-east/ttft_p50` | 0 | 1 | median TTFT / target / 2; 0 without any |
    | 82 | `llama-2-70b/us-east/ttft_p95` | 0 | 1 | 95th percentile of TTFT / target / 2; 0 without any |
    | 83 | `bloom-2h/length` | 0 | 1 | requests, log scale to all expected in an episode |
    | 84 | `bloom-2h/oldest` | 0 | 1 | age of the oldest / longest TTFT target / 2 |
    | 85 | `bloom-2h/slack_0` | 0 | 1 | share with deadline passed |
    | 86 | `bloom-2h/slack_1` | 0 | 1 | share with 0% to 10% of the target left |
    | 87 | `bloom-2h/slack_2` | 0 | 1 | share with 10% to 25% of the target left |
    | 88 | `bloom-2h/slack_3` | 0 | 1 | share with 25% to 50% of the target left |
    | 89 | `bloom-2h/slack_4` | 0 | 1 | share with 50% or more of the target left |
    | 90 | `bloom-6h/length` | 0 | 1 | requests, log scale to all expected in an episode |
    | 91 | `bloom-6h/oldest` | 0 | 1 | age of the oldest / longest TTFT target / 2 |
    | 92 | `bloom-6h/slack_0` | 0 | 1 | share with deadline passed |
    | 93 | `bloom-6h/slack_1` | 0 | 1 | share with 0% to 10% of the target left |
    | 94 | `bloom-6h/slack_2` | 0 | 1 | share with 10% to 25% of the target left |
    | 95 | `bloom-6h/slack_3` | 0 | 1 | share with 25% to 50% of the target left |
    | 96 | `bloom-6h/slack_4` | 0 | 1 | share with 50% or more of the target left |
    | 97 | `bloom-12h/length` | 0 | 1 | requests, log scale to all expected in an episode |
    | 98 | `bloom-12h/oldest` | 0 | 1 | age of the oldest / longest TTFT target / 2 |
    | 99 | `bloom-12h/slack_0` | 0 | 1 | share with deadline passed |
    | 100 | `bloom-12h/slack_1` | 0 | 1 | share with 0% to 10% of the target left |
    | 101 | `bloom-12h/slack_2` | 0 | 1 | share with 10% to 25% of the target left |
    | 102 | `bloom-12h/slack_3` | 0 | 1 | share with 25% to 50% of the target left |
    | 103 | `bloom-12h/slack_4` | 0 | 1 | share with 50% or more of the target left |
    | 104 | `llama2-2h/length` | 0 | 1 | requests, log scale to all expected in an episode |
    | 105 | `llama2-2h/oldest` | 0 | 1 | age of the oldest / longest TTFT target / 2 |
    | 106 | `llama2-2h/slack_0` | 0 | 1 | share with deadline passed |
    | 107 | `llama2-2h/slack_1` | 0 | 1 | share with 0% to 10% of the target left |
    | 108 | `llama2-2h/slack_2` | 0 | 1 | share with 10% to 25% of the target left |
    | 109 | `llama2-2h/slack_3` | 0 | 1 | share with 25% to 50% of the target left |
    | 110 | `llama2-2h/slack_4` | 0 | 1 | share with 50% or more of the target left |
    | 111 | `llama2-6h/length` | 0 | 1 | requests, log scale to all expected in an episode |
    | 112 | `llama2-6h/oldest` | 0 | 1 | age of the oldest / longest TTFT target / 2 |
    | 113 | `llama2-6h/slack_0` | 0 | 1 | share with deadline passed |
    | 114 | `llama2-6h/slack_1` | 0 | 1 | share with 0% to 10% of the target left |
    | 115 | `llama2-6h/slack_2` | 0 | 1 | share with 10% to 25% of the target left |
    | 116 | `llama2-6h/slack_3` | 0 | 1 | share with 25% to 50% of the target left |
    | 117 | `llama2-6h/slack_4` | 0 | 1 | share with 50% or more of the target left |
    | 118 | `llama2-12h/length` | 0 | 1 | requests, log scale to all expected in an episode |
    | 119 | `llama2-12h/oldest` | 0 | 1 | age of the oldest / longest TTFT target / 2 |
    | 120 | `llama2-12h/slack_0` | 0 | 1 | share with deadline passed |
    | 121 | `llama2-12h/slack_1` | 0 | 1 | share with 0% to 10% of the target left |
    | 122 | `llama2-12h/slack_2` | 0 | 1 | share with 10% to 25% of the target left |
    | 123 | `llama2-12h/slack_3` | 0 | 1 | share with 25% to 50% of the target left |
    | 124 | `llama2-12h/slack_4` | 0 | 1 | share with 50% or more of the target left |
    | 125 | `bloom-us-west/active` | 0 | 1 | active instances / slots |
    | 126 | `bloom-us-west/leaving` | 0 | 1 | instances that drain or go to spot / slots |
    | 127 | `bloom-us-west/ready_0` | 0 | 1 | on their way, up to 60 s left, / slots |
    | 128 | `bloom-us-west/ready_1` | 0 | 1 | on their way, 60 s to 300 s left, / slots |
    | 129 | `bloom-us-west/ready_2` | 0 | 1 | on their way, 300 s to 900 s left, / slots |
    | 130 | `bloom-us-west/ready_3` | 0 | 1 | on their way, more than 900 s left, / slots |
    | 131 | `bloom-us-west/spot` | 0 | 1 | VMs leased out with its LLM / slots |
    | 132 | `bloom-us-west/spot_others` | 0 | 1 | VMs of others that it may take / their slots |
    | 133 | `bloom-us-west/utilisation` | 0 | 1 | memory in use / capacity; 1 if none is active |
    | 134 | `bloom-us-west/kv_max` | 0 | 1 | KV use of the fullest instance |
    | 135 | `bloom-us-west/waiting` | 0 | 1 | waiting requests per active instance, log scale to 256 |
    | 136 | `bloom-us-west/preemptions` | 0 | 1 | preemptions per iteration, log to 1 |
    | 137 | `bloom-us-west/reclaimed` | 0 | 1 | instances started in the interval / slots / 4 |
    | 138 | `bloom-us-central/active` | 0 | 1 | active instances / slots |
    | 139 | `bloom-us-central/leaving` | 0 | 1 | instances that drain or go to spot / slots |
    | 140 | `bloom-us-central/ready_0` | 0 | 1 | on their way, up to 60 s left, / slots |
    | 141 | `bloom-us-central/ready_1` | 0 | 1 | on their way, 60 s to 300 s left, / slots |
    | 142 | `bloom-us-central/ready_2` | 0 | 1 | on their way, 300 s to 900 s left, / slots |
    | 143 | `bloom-us-central/ready_3` | 0 | 1 | on their way, more than 900 s left, / slots |
    | 144 | `bloom-us-central/spot` | 0 | 1 | VMs leased out with its LLM / slots |
    | 145 | `bloom-us-central/spot_others` | 0 | 1 | VMs of others that it may take / their slots |
    | 146 | `bloom-us-central/utilisation` | 0 | 1 | memory in use / capacity; 1 if none is active |
    | 147 | `bloom-us-central/kv_max` | 0 | 1 | KV use of the fullest instance |
    | 148 | `bloom-us-central/waiting` | 0 | 1 | waiting requests per active instance, log scale to 256 |
    | 149 | `bloom-us-central/preemptions` | 0 | 1 | preemptions per iteration, log to 1 |
    | 150 | `bloom-us-central/reclaimed` | 0 | 1 | instances started in the interval / slots / 4 |
    | 151 | `bloom-us-east/active` | 0 | 1 | active instances / slots |
    | 152 | `bloom-us-east/leaving` | 0 | 1 | instances that drain or go to spot / slots |
    | 153 | `bloom-us-east/ready_0` | 0 | 1 | on their way, up to 60 s left, / slots |
    | 154 | `bloom-us-east/ready_1` | 0 | 1 | on their way, 60 s to 300 s left, / slots |
    | 155 | `bloom-us-east/ready_2` | 0 | 1 | on their way, 300 s to 900 s left, / slots |
    | 156 | `bloom-us-east/ready_3` | 0 | 1 | on their way, more than 900 s left, / slots |
    | 157 | `bloom-us-east/spot` | 0 | 1 | VMs leased out with its LLM / slots |
    | 158 | `bloom-us-east/spot_others` | 0 | 1 | VMs of others that it may take / their slots |
    | 159 | `bloom-us-east/utilisation` | 0 | 1 | memory in use / capacity; 1 if none is active |
    | 160 | `bloom-us-east/kv_max` | 0 | 1 | KV use of the fullest instance |
    | 161 | `bloom-us-east/waiting` | 0 | 1 | waiting requests per active instance, log scale to 256 |
    | 162 | `bloom-us-east/preemptions` | 0 | 1 | preemptions per iteration, log to 1 |
    | 163 | `bloom-us-east/reclaimed` | 0 | 1 | instances started in the interval / slots / 4 |
    | 164 | `llama2-us-west/active` | 0 | 1 | active instances / slots |
    | 165 | `llama2-us-west/leaving` | 0 | 1 | instances that drain or go to spot / slots |
    | 166 | `llama2-us-west/ready_0` | 0 | 1 | on their way, up to 60 s left, / slots |
    | 167 | `llama2-us-west/ready_1` | 0 | 1 | on their way, 60 s to 300 s left, / slots |
    | 168 | `llama2-us-west/ready_2` | 0 | 1 | on their way, 300 s to 900 s left, / slots |
    | 169 | `llama2-us-west/ready_3` | 0 | 1 | on their way, more than 900 s left, / slots |
    | 170 | `llama2-us-west/spot` | 0 | 1 | VMs leased out with its LLM / slots |
    | 171 | `llama2-us-west/spot_others` | 0 | 1 | VMs of others that it may take / their slots |
    | 172 | `llama2-us-west/utilisation` | 0 | 1 | memory in use / capacity; 1 if none is active |
    | 173 | `llama2-us-west/kv_max` | 0 | 1 | KV use of the fullest instance |
    | 174 | `llama2-us-west/waiting` | 0 | 1 | waiting requests per active instance, log scale to 256 |
    | 175 | `llama2-us-west/preemptions` | 0 | 1 | preemptions per iteration, log to 1 |
    | 176 | `llama2-us-west/reclaimed` | 0 | 1 | instances started in the interval / slots / 4 |
    | 177 | `llama2-us-central/active` | 0 | 1 | active instances / slots |
    | 178 | `llama2-us-central/leaving` | 0 | 1 | instances that drain or go to spot / slots |
    | 179 | `llama2-us-central/ready_0` | 0 | 1 | on their way, up to 60 s left, / slots |
    | 180 | `llama2-us-central/ready_1` | 0 | 1 | on their way, 60 s to 300 s left, / slots |
    | 181 | `llama2-us-central/ready_2` | 0 | 1 | on their way, 300 s to 900 s left, / slots |
    | 182 | `llama2-us-central/ready_3` | 0 | 1 | on their way, more than 900 s left, / slots |
    | 183 | `llama2-us-central/spot` | 0 | 1 | VMs leased out with its LLM / slots |
    | 184 | `llama2-us-central/spot_others` | 0 | 1 | VMs of others that it may take / their slots |
    | 185 | `llama2-us-central/utilisation` | 0 | 1 | memory in use / capacity; 1 if none is active |
    | 186 | `llama2-us-central/kv_max` | 0 | 1 | KV use of the fullest instance |
    | 187 | `llama2-us-central/waiting` | 0 | 1 | waiting requests per active instance, log scale to 256 |
    | 188 | `llama2-us-central/preemptions` | 0 | 1 | preemptions per iteration, log to 1 |
    | 189 | `llama2-us-central/reclaimed` | 0 | 1 | instances started in the interval / slots / 4 |
    | 190 | `llama2-us-east/active` | 0 | 1 | active instances / slots |
    | 191 | `llama2-us-east/leaving` | 0 | 1 | instances that drain or go to spot / slots |
    | 192 | `llama2-us-east/ready_0` | 0 | 1 | on their way, up to 60 s left, / slots |
    | 193 | `llama2-us-east/ready_1` | 0 | 1 | on their way, 60 s to 300 s left, / slots |
    | 194 | `llama2-us-east/ready_2` | 0 | 1 | on their way, 300 s to 900 s left, / slots |
    | 195 | `llama2-us-east/ready_3` | 0 | 1 | on their way, more than 900 s left, / slots |
    | 196 | `llama2-us-east/spot` | 0 | 1 | VMs leased out with its LLM / slots |
    | 197 | `llama2-us-east/spot_others` | 0 | 1 | VMs of others that it may take / their slots |
    | 198 | `llama2-us-east/utilisation` | 0 | 1 | memory in use / capacity; 1 if none is active |
    | 199 | `llama2-us-east/kv_max` | 0 | 1 | KV use of the fullest instance |
    | 200 | `llama2-us-east/waiting` | 0 | 1 | waiting requests per active instance, log scale to 256 |
    | 201 | `llama2-us-east/preemptions` | 0 | 1 | preemptions per iteration, log to 1 |
    | 202 | `llama2-us-east/reclaimed` | 0 | 1 | instances started in the interval / slots / 4 |
    | 203 | `last/bloom-us-west/instances` | 0 | 1 | choice / (choices - 1); 0 at the start |
    | 204 | `last/bloom-us-west/rule` | 0 | 1 | choice / (choices - 1); 0 at the start |
    | 205 | `last/bloom-us-central/instances` | 0 | 1 | choice / (choices - 1); 0 at the start |
    | 206 | `last/bloom-us-central/rule` | 0 | 1 | choice / (choices - 1); 0 at the start |
    | 207 | `last/bloom-us-east/instances` | 0 | 1 | choice / (choices - 1); 0 at the start |
    | 208 | `last/bloom-us-east/rule` | 0 | 1 | choice / (choices - 1); 0 at the start |
    | 209 | `last/llama2-us-west/instances` | 0 | 1 | choice / (choices - 1); 0 at the start |
    | 210 | `last/llama2-us-west/rule` | 0 | 1 | choice / (choices - 1); 0 at the start |
    | 211 | `last/llama2-us-central/instances` | 0 | 1 | choice / (choices - 1); 0 at the start |
    | 212 | `last/llama2-us-central/rule` | 0 | 1 | choice / (choices - 1); 0 at the start |
    | 213 | `last/llama2-us-east/instances` | 0 | 1 | choice / (choices - 1); 0 at the start |
    | 214 | `last/llama2-us-east/rule` | 0 | 1 | choice / (choices - 1); 0 at the start |
    | 215 | `last/us-west/threshold` | 0 | 1 | choice / (choices - 1); 0 at the start |
    | 216 | `last/us-west/first` | 0 | 1 | choice / (choices - 1); 0 at the start |
    | 217 | `last/us-central/threshold` | 0 | 1 | choice / (choices - 1); 0 at the start |
    | 218 | `last/us-central/first` | 0 | 1 | choice / (choices - 1); 0 at the start |
    | 219 | `last/us-east/threshold` | 0 | 1 | choice / (choices - 1); 0 at the start |
    | 220 | `last/us-east/first` | 0 | 1 | choice / (choices - 1); 0 at the start |
    | 221 | `last/bloom-2h/us-west/release` | 0 | 1 | choice / (choices - 1); 0 at the start |
    | 222 | `last/bloom-2h/us-central/release` | 0 | 1 | choice / (choices - 1); 0 at the start |
    | 223 | `last/bloom-2h/us-east/release` | 0 | 1 | choice / (choices - 1); 0 at the start |
    | 224 | `last/bloom-6h/us-west/release` | 0 | 1 | choice / (choices - 1); 0 at the start |
    | 225 | `last/bloom-6h/us-central/release` | 0 | 1 | choice / (choices - 1); 0 at the start |
    | 226 | `last/bloom-6h/us-east/release` | 0 | 1 | choice / (choices - 1); 0 at the start |
    | 227 | `last/bloom-12h/us-west/release` | 0 | 1 | choice / (choices - 1); 0 at the start |
    | 228 | `last/bloom-12h/us-central/release` | 0 | 1 | choice / (choices - 1); 0 at the start |
    | 229 | `last/bloom-12h/us-east/release` | 0 | 1 | choice / (choices - 1); 0 at the start |
    | 230 | `last/llama2-2h/us-west/release` | 0 | 1 | choice / (choices - 1); 0 at the start |
    | 231 | `last/llama2-2h/us-central/release` | 0 | 1 | choice / (choices - 1); 0 at the start |
    | 232 | `last/llama2-2h/us-east/release` | 0 | 1 | choice / (choices - 1); 0 at the start |
    | 233 | `last/llama2-6h/us-west/release` | 0 | 1 | choice / (choices - 1); 0 at the start |
    | 234 | `last/llama2-6h/us-central/release` | 0 | 1 | choice / (choices - 1); 0 at the start |
    | 235 | `last/llama2-6h/us-east/release` | 0 | 1 | choice / (choices - 1); 0 at the start |
    | 236 | `last/llama2-12h/us-west/release` | 0 | 1 | choice / (choices - 1); 0 at the start |
    | 237 | `last/llama2-12h/us-central/release` | 0 | 1 | choice / (choices - 1); 0 at the start |
    | 238 | `last/llama2-12h/us-east/release` | 0 | 1 | choice / (choices - 1); 0 at the start |

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
    - `observation`, `action`: names of blocks (`llmscale_env.envs.observations.BLOCKS`) and heads
      (`llmscale_env.envs.actions.HEADS`) in place of the default ones;
    - `forecaster="ewma"`: what the block `forecast` would show, which is not among the default ones;
    - `reference`: a policy whose instance counts the head `residual` multiplies; `shaping`: weight of a term
      of the reward for requests that will be late (docs/forms.md);
    - `engine="fast"`: or `"reference"`, the simulator in readable Python, with the same numbers
      (docs/architecture.md);
    - `render_mode`: "ansi" (a table of the cluster now) or "rgb_array" (arrivals, queues, instances
      and attainment over the episode so far).

    The vectorised form (`gym.make_vec(..., vectorization_mode="vector_entry_point")`) takes
    `num_envs` and `threads` besides, advances all episodes in one call, and resets a finished one
    in the same step. Episode `e` of it equals a single environment reset with `seed + e`.

    ## One agent per region

    `llmscale_env.envs.multi_region_parallel.MultiRegionParallelEnv` is the same as a PettingZoo parallel
    environment (`pip install 'llmscale[multiagent]'`):

    ```python
    from llmscale_env.envs.multi_region_parallel import MultiRegionParallelEnv

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
    `infos[agent]["action_mask"]` says what is possible.

    ## Information

    - `metrics`: of the episode so far: `CLASS/slo_attainment`, `CLASS/violations`, `CLASS/arrived`,
      `joint/slo_attainment`, `gpu_hours`, `loads`, `preemptions`, `evictions`, `POOL/active`,
      `POOL/loading`, `POOL/running`, `POOL/waiting`, `POOL/batch_limit`, `queue/QUEUE`, `reward`;
    - `reward_parts`, `clipped`, `action_mask`: see above;
    - `cost`: violations of the interval, for constrained RL, and `cost_by_class`;
    - `episode_summary`: the metrics at the end of an episode, attainment as the share of all
      arrivals (in `metrics`, of those whose fate is known).

    `set_weights(gpu=, violations=, loads=)` moves the weights of the reward's parts, `violations` for all
    classes or by class, as a Lagrangian needs; `metrics` keeps the reward by the scenario's own.

    `save_state()`, `restore_state(saved)` and `fork()` copy an episode in progress; `view()` shows
    it as a handwritten policy sees it.

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
