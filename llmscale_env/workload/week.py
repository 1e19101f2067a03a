"""SageServe's week of requests and its service levels (arXiv 2502.14617), with what may be asked of it.

The mix `sageserve-week` is the published shape; `sageserve_week` gives it with bursts, tighter and
lower tiers, another start, or the other reading of the source's models.
"""

from __future__ import annotations

from collections.abc import Sequence

from llmscale_env.workload.config import LoadBurst, SLOClass, WorkloadConfig
from llmscale_env.workload.mixes import mix_data

WEEK_REGIONS = ("us-west", "us-central", "us-east")
WEEK_LLMS = ("bloom-176b", "llama-2-70b", "llama-3.1-8b", "llama-3.2-3b")

FAST = SLOClass(name="interactive-fast", ttft_s=1.0, itl_s=0.2, weight=3.0)
INTERACTIVE = SLOClass(name="interactive", ttft_s=10.0, itl_s=0.2, weight=3.0)
NORMAL = SLOClass(name="interactive-normal", ttft_s=60.0, itl_s=0.2, weight=3.0)
NON_INTERACTIVE = SLOClass(name="non-interactive", ttft_s=86_400.0, itl_s=2.0, priority=1)
OPPORTUNISTIC = SLOClass(name="opportunistic", ttft_s=86_400.0, itl_s=2.0, priority=1, weight=0.0)
WEEK_CLASSES = (FAST, INTERACTIVE, NORMAL, NON_INTERACTIVE, OPPORTUNISTIC)
"""Interactive limits range "from a second to a minute" (section 3.3: fast, normal); the released code has
10 s for all, which the mix takes. Non-interactive requests expire after 24 h (section 3.3; 12 h in the
code). Weights 3 and 1 are the code's utilities; what is opportunistic has no promise. ITL limits are ours."""


def week_classes(workload: WorkloadConfig) -> tuple[SLOClass, ...]:
    """Those of `WEEK_CLASSES` that a workload has requests of, the tightest first."""
    used = {stream.slo_class for stream in workload.streams}
    return tuple(each for each in WEEK_CLASSES if each.name in used)


def sageserve_week(
    *,
    rate_scale: float = 1.0,
    start_s: float = 0.0,
    bursts: Sequence[LoadBurst] = (),
    fast_share: float | None = None,
    opportunistic_share: float = 0.0,
    swap_b_and_d: bool = False,
    stationary_d: bool = False,
) -> WorkloadConfig:
    """The mix `sageserve-week`, changed.

    Args:
        rate_scale: multiplies all rates.
        start_s: time in the week at which the episode starts (0: Monday 0 h UTC).
        bursts: of everything interactive, in the episode's time (section 7.3.4: twice 8 times; the
            released code has 9 times in one minute of every hour).
        fast_share: interactive requests are of the classes "interactive-fast" (so many of them) and
            "interactive-normal" (the rest), with noise of their own; None: all "interactive".
        opportunistic_share: so many more opportunistic requests as a share of each LLM's
            non-interactive ones, at their flat rate and lengths (ours: the source has none).
        swap_b_and_d: the source's model B is Llama-3.2-3B and D is Bloom (prompts of D are clipped as
            Bloom's are then).
        stationary_d: D does not fade out: its mean rate, without any pattern, all week.

    Raises:
        ValueError: a share outside 0..1, or another value out of range.
    """
    for name, share in (
        ("fast_share", fast_share or 0.0),
        ("opportunistic_share", opportunistic_share),
    ):
        if not 0 <= share <= 1:
            raise ValueError(f"{name} = {share}: must be in 0..1")
    streams = []
    for stream in mix_data("sageserve-week")["streams"]:
        arrivals = {**stream["arrivals"], "start_s": start_s}
        interactive = stream["slo_class"] == "interactive"
        letter = arrivals["series"][-1]
        if interactive:
            arrivals["bursts"] = [burst.model_dump() for burst in bursts]
        if stationary_d and letter == "d":
            arrivals["series"] = "flat"
        if swap_b_and_d and letter in "bd":
            old, new = ("bloom", "llama-3.2") if letter == "b" else ("llama-3.2", "bloom")
            llm = {"bloom": "bloom-176b", "llama-3.2": "llama-3.2-3b"}[new]
            lengths = {**stream["lengths"], "max_input_tokens": 49_424}
            stream = {**stream, "name": stream["name"].replace(old, new), "llm": llm}
            stream["lengths"] = lengths
        stream = {**stream, "arrivals": arrivals}
        if interactive and fast_share is not None:
            tiers = (("fast", fast_share), ("normal", 1 - fast_share))
            streams += [
                {
                    **stream,
                    "name": f"{stream['name']}-{tier}",
                    "slo_class": f"interactive-{tier}",
                    "rate_per_s": stream["rate_per_s"] * share,
                }
                for tier, share in tiers
                if share > 0
            ]
        else:
            streams.append(stream)
        if not interactive and opportunistic_share > 0:
            streams.append(
                {
                    **stream,
                    "name": stream["name"].replace("non-interactive", "opportunistic"),
                    "slo_class": "opportunistic",
                    "rate_per_s": stream["rate_per_s"] * opportunistic_share,
                }
            )
    return WorkloadConfig.model_validate({"streams": streams, "rate_scale": rate_scale})
