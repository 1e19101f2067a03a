"""QLM's main claims, and what else its experiments have taught.

The seven are those of section 1, "Results"; abstract and conclusion sum them up as 40 to 90 % of SLO
attainment and 20 to 400 % of throughput.
"""

from __future__ import annotations

from experiments.harness.headlines import Headline

HEADLINES = (
    Headline(
        "abstract, section 1",
        "SLO attainment is 40 to 90 % above that of vLLM, depending on the arrival rate",
        "qlm-fig09",
        "Depending on the arrival rate, QLM's SLO attainment is 40 to 90 % above that of vLLM",
    ),
    Headline(
        "section 1",
        "SLO attainment is 50 to 90 % above that of systems such as SHEPHERD",
        "qlm-fig09",
        "Depending on the arrival rate, QLM's SLO attainment is 50 to 90 % above that of SHEPHERD",
    ),
    Headline(
        "abstract, section 1",
        "With several models throughput improves by 400 % on average",
        "qlm-fig12",
        "With several models QLM improves throughput by 400 % on average over other systems",
        "158 % where vLLM and EDF share a queue, 1,844 % with a queue per instance. Batches of 10, two or "
        "eight GPUs per instance, longer swaps and other Batch-2 rates, tried on single traces, leave both "
        "outside 300 to 500 %.",
    ),
    Headline(
        "abstract, section 1",
        "With a single model throughput improves by 20 % on average",
        "qlm-fig09",
        "QLM's throughput is 20 % higher than that of vLLM and EDF",
    ),
    Headline(
        "section 1",
        "All serving operations contribute to SLO attainment and throughput",
        "qlm-fig11",
        "All serving operations contribute to SLO attainment and throughput",
    ),
    Headline(
        "section 1",
        "Model swapping improves throughput by 300 % with several models",
        "qlm-fig14",
        "Model swapping improves throughput by 300 %",
    ),
    Headline(
        "section 1",
        "Request eviction improves SLO attainment by 80 % with a single model",
        "qlm-fig11",
        "Request eviction improves SLO attainment by 80 %",
    ),
)

LEARNT = (
    "A trace of 3,500 requests, the paper's number, fits into the batches of 50 A100 at once. A queue forms "
    "if rates are kept for a minute, or in batches of 10, as the released code has them.",
    "At 200 interactive requests/s ordering by deadline is most of QLM's gain over vLLM: vLLM meets 35 % "
    "of interactive SLOs, EDF without any eviction 82 %, QLM 90 %. From 300/s on EDF is about as vLLM.",
    "Eviction has a price: each one copies KV or costs a second prefill. With batch requests at fixed "
    "rates EDF meets 96 % of all SLOs at 300 interactive requests/s, and QLM 87 %.",
    "A group stands in one virtual queue, so that few instances serve interactive requests that come "
    "slowly. For several LLMs at 10 requests/s QLM needs 80 GPUs (Figure 1), EDF and vLLM 40.",
    "How vLLM and EDF queue decides what QLM gains with several models. From one queue they swap about "
    "200 times per trace, from a queue per instance nearly 2,000 times; the paper's gain of 400 % lies "
    "between.",
    "The released code serves batches of at most 10. There EDF meets 97 % of interactive SLOs as QLM does, "
    "vLLM 38 %, and a queue per instance costs vLLM and EDF a tenth of their throughput.",
    "QLM's eviction is worth little if only a foreseen violation calls for it. At 500 interactive requests/s "
    "the estimator foresees none for some 20 s, which is the target.",
    "The programme of Eq. 6 to 13 takes 0.6 s for 10 groups on 50 instances. For 30 groups it takes 5.5 s, "
    "and no longer proves its plan the best. A search orders 391 groups, 400,000 requests, in 0.35 s.",
    "The throughput of one profiled batch is too optimistic where memory limits the batch, since it "
    "knows no preemption. For Vicuna-13B R2 is 0.83 with it, and 0.99 with the throughput that the "
    "instance logs.",
    "No state of the instance fits all sentences on the estimator. At work R2 reaches 0.99 with "
    "the logged throughput, but waits in short queues are not over-estimated; in front of an idle "
    "instance they are, but there R2 is 0.98.",
)
