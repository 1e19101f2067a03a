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

LEARNT = ("to do",)
