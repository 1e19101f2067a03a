"""The main claims of Aladdin, and what we found that the paper does not say."""

from __future__ import annotations

from experiments.harness.headlines import Headline

HEADLINES = (
    Headline(
        "abstract, conclusion",
        "Aladdin reduces the serving cost by up to 71 % for the same SLO level",
        "aladdin-fig11",
        "Aladdin needs up to 71 % fewer GPUs than default vLLM",
    ),
    Headline(
        "section 6.4",
        "Placement alone saves up to 40 % over join-shortest-queue on the same workers",
        "aladdin-fig11",
        "Aladdin needs up to 40 % fewer GPUs than shortest queue with the best degree",
    ),
    Headline(
        "section 6",
        "Aladdin needs up to 60 % fewer decode GPUs than split-phase engines",
        "aladdin-fig12",
        "Aladdin needs up to 60 % fewer GPUs for decode than shortest queue",
    ),
    Headline(
        "introduction",
        "It fulfils the SLOs of all requests",
        "aladdin-fig11",
        "Aladdin fulfils the SLOs of all requests, given enough GPUs",
    ),
    Headline(
        "introduction",
        "Its online placement is near-optimal, seen in one round of packing",
        "aladdin-gap",
        "The heuristic approaches optimal scheduling",
    ),
    Headline(
        "introduction; section 6",
        "Its performance models are accurate",
        "aladdin-fig06",
        "Aladdin predicts performance metrics with a maximum error below 10 %",
    ),
    Headline(
        "introduction",
        "One worker of all GPUs of a machine is suboptimal for most models",
        "aladdin-table3",
        "One worker of all GPUs of a machine is suboptimal for most models",
    ),
    Headline(
        "introduction",
        "Adjusted placement of new arrivals reduces the impact of prediction errors",
        "aladdin-rebalancing",
        "Re-balancing reduces the effect of prediction errors",
    ),
)

LEARNT = (
    "Join-shortest-queue on workers of the best degree is near what a fluid needs, so a placement has little "
    "to save. With 99 % of requests on time it decodes 25 requests/s of Llama-2-70B on 66.7 GPUs, where a "
    "fluid needs 64.7. The paper's 60 % cannot be saved from that.",
    "The saving over default vLLM comes from the degree of the workers. With first turns at 25 requests/s "
    "Llama-2-7B needs 37 GPUs in workers of 4 for all SLOs. In workers of 1, shortest queue needs 11 of them "
    "and Aladdin 9.",
    "Placement pays where prompts are long. With whole conversations at 20 requests/s and theta = 0.7 "
    "Llama-2-7B needs 27 GPUs for all SLOs, and 59 with shortest queue.",
    "Best fit keeps the SLOs of all requests only if a request whose prefill is under way counts as ongoing "
    "in constraint (d). It has saved nothing yet, so that nothing may join it. Before we read it so, no run "
    "of Llama-2-70B got to 100 %.",
    "Admission pays in overload, not below it. Llama-2-13B on 4 A100 gains 63.9 points of attainment over "
    "shortest queue at a load of 1.1, and none at loads up to 0.7.",
    "First fit is as good as best fit on requests with chat lengths: 0.22 and 0.24 workers beyond the "
    "optimum, on average. What makes the difference to shortest queue is the constraints, not the order.",
    "The best degree depends on the link. Over PCIe workers of 1 A100 are best for Llama-2-7B and 13B, over "
    "NVLink workers of 4.",
)
