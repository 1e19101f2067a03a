"""Section 6.1 on the mixed configuration: who takes all GPUs from which rate on, and who is then late.

"Llumnix (Untuned)" is judged in both readings of its batch limit (`llumnix_settings`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from agents.statistics import Interval
from experiments.chiron.comparison import at_load, by_load, reached
from experiments.chiron.llumnix_settings import OPPONENTS, UNTUNED_READINGS
from experiments.chiron.loads import EXHAUSTED
from experiments.harness.claims import Claim, about, at_most
from experiments.harness.figure import claimed

if TYPE_CHECKING:
    from pandas import DataFrame

EXHAUSTS_PER_S, VIOLATES_PER_S = 40, 100  # Llumnix's GPUs, Chiron's SLOs


@claimed
def exhaustion_claims(
    frame: DataFrame, policies: Sequence[str], most_per_s: float, meets: float
) -> Iterator[Claim]:
    """Section 6.1's claims; what is said of a rate that was not run is left out.

    Args:
        frame: rows of W_A in the mixed configuration (others are not looked at).
        policies: Chiron, the untuned versions of Llumnix, and others to say in the reasons.
        most_per_s: the highest rate that was run.
        meets: share of requests on time from which on SLOs count as met.
    """
    share = frame.assign(gpu_share=frame["gpus"] / 50)
    served = {
        policy: reached(frame, policy, "mixed", "slo_attainment", meets, last=True)
        for policy in policies
    }
    limit = f"{meets:.0%}"
    shown = "; ".join(f"{name} {_rate(served[name], most_per_s)}" for name in policies)
    for policy in UNTUNED_READINGS:
        name = f"Llumnix ({OPPONENTS[policy]})"
        full = reached(share, policy, "mixed", "gpu_share", EXHAUSTED, last=False)
        yield about(
            f"Mixed: {name} exhausts the GPUs at {EXHAUSTS_PER_S} requests/s",
            EXHAUSTS_PER_S,
            full,
            nothing=None,
            unit="requests/s",
            reason=f"it has them at {_rate(full, most_per_s)}; rates up to {most_per_s:g} were run",
            note=f"lowest rate at which {EXHAUSTED:.0%} of the GPUs are taken on average",
        )
        on_time = at_load(
            100 * by_load(frame, policy, "slo_attainment"), "mixed", float(EXHAUSTS_PER_S)
        )
        if math.isnan(on_time.mean):
            continue
        yield at_most(
            f"Mixed: at {EXHAUSTS_PER_S} requests/s that leads to SLO violations of {name}",
            100 * meets,
            on_time,
            nothing=None,
            unit="% of the requests on time",
            paper="SLO violations",
            reason="with these GPUs it serves that rate in time; rates beyond which fewer "
            f"than {limit} are on time: {shown}",
        )
    yield about(
        f"Mixed: Chiron violates SLOs only beyond {VIOLATES_PER_S} requests/s",
        VIOLATES_PER_S,
        served["chiron"],
        nothing=None,
        unit="requests/s",
        reason=f"rates up to {most_per_s:g} were run",
        note=f"rates beyond which fewer than {limit} of the requests are on time: {shown}",
    )


def _rate(found: Interval, most_per_s: float) -> str:
    """A rate at which something ends or begins, which may lie beyond those that were run."""
    if math.isnan(found.mean):
        return f"none up to {most_per_s:g}"
    return (
        f"none up to {most_per_s:g} for some seeds"
        if math.isinf(found.mean)
        else f"{found.mean:.0f}"
    )
