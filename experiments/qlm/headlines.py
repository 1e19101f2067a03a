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
        "qlm-fig14",
        "Each of the four operations contributes to latency or throughput",
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

LEARNT = ()
