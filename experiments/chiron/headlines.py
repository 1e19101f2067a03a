"""The main claims of Chiron's abstract, introduction and conclusion, and what we found beside them."""

from __future__ import annotations

from experiments.harness.headlines import Headline

HEADLINES = (
    Headline(
        "abstract",
        "up to 90 % higher SLO attainment than Llumnix",
        "chiron-fig09",
        "Chiron achieves up to 90 % higher SLO attainment than Llumnix",
    ),
    Headline(
        "introduction",
        "up to 300 % more request throughput than previous systems",
        "chiron-fig10",
        "Chiron improves the request throughput up to 300 % compared to previous systems",
    ),
    Headline(
        "abstract",
        "up to 70 % fewer GPUs",
        "chiron-fig10",
        "Chiron saves up to 70 % of the GPUs",
    ),
    Headline(
        "introduction",
        "local and global backpressure both contribute to SLO attainment and throughput",
        "chiron-fig18",
        "Both local and global backpressure contribute to throughput improvement",
    ),
    Headline(
        "introduction",
        "the local autoscaler finds the batch size online, without profiling",
        "chiron-fig11",
        "EWMA and proportional scaling allow for convergence to the optimal batch size",
    ),
    Headline(
        "introduction",
        "batch requests use the spare capacity of over-provisioning and so raise throughput",
        "chiron-fig13",
        "Longer queueing lets batch requests multiplex on mixed instances, which improves throughput",
    ),
    Headline(
        "introduction",
        "request groups minimize unnecessary scaling actions",
        "chiron-fig06",
        "By serving requests in groups, frequent scaling actions are reduced",
    ),
    Headline(
        "introduction",
        "robust with bursty arrival patterns",
        "chiron-fig17",
        "The default over-provisioning of 3 is sufficient to handle a burstiness of 8",
    ),
    Headline(
        "introduction",
        "robust with varying SLO values",
        "chiron-fig16",
        "The probability of SLO violation with small ITL targets is less than 0.5 %",
    ),
)

LEARNT = (
    "Algorithm 1 as printed compares throughput at every update, and noise halves the limit down to one "
    "request, at about 1 % of the best fixed limit's throughput. Compared after a raise only, as section 4.1 "
    "has it, it reaches 99 % of the best (Figure 11).",
    "Which batch limit the untuned Llumnix had decides Figures 9, 10 and 18. Section 6.2 implies 64; a sweep "
    "for SLO attainment, which section 6 describes, finds 1024. Beside 1024 Chiron has no more requests on "
    "time in workload A, and a static limit does as well as its local autoscaler.",
    "Without bursts the reserve of theta = 1/3 only costs: at 340 requests/s Chiron has less than half of "
    "the tuned Llumnix's throughput per instance. With hardly any reserve it still has some 15 % less "
    "(Figure 9).",
    "KV memory, not the limit, holds the batch of the 8B: some 960 requests run (Figure 11). Batch sizes of "
    "2048 to 4096 are out of its reach.",
    "Hysteresis as the paper defines it lies between 1 and 2 for any fleet that starts from none, so it "
    "cannot fall 20 times. Scaling actions per request fall 30 to 300 times (Figure 6).",
    "A longer queue helps only while mixed instances would otherwise run idle. Beside a steady stream of "
    "batch requests a queue 8 times as long leaves what they serve as it was (Figure 13).",
    "The 20 requests/s of appendix A.2 must be per instance: 15 instances with 20 each leave the fifth that "
    "it names. Llumnix finishes its million requests in half an hour once waiting requests move to the "
    "instances that it adds (Figure 19).",
)
