"""Where a paper's main claims hold: a panel per claim, a line per setting that its text or code allows.

A claim made by `claims.settings` has a part per setting. Filled marks count, hollow ones are settings of
ours, which no text allows; the shaded area is where the claim reproduces under the project's rule.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from typing import Any

from agents.statistics import shown
from experiments.harness.claims import Claim, Verdict
from experiments.output import new_figure

COLOURS = {
    Verdict.REPRODUCED: "#2a7f3f",
    Verdict.DIRECTION: "#d98f1e",
    Verdict.NOT: "#b03030",
    Verdict.UNMEASURED: "0.6",
}
FAR = 4.0
"""A number is drawn at the edge where it lies further away than this many widths of the rest."""


def maps(claims: Sequence[tuple[str, Claim]]) -> Any | None:
    """The picture of those claims that have settings, each under its name; None where none has any."""
    mapped = [(name, claim) for name, claim in claims if claim.mapped and len(claim.parts) > 1]
    if not mapped:
        return None
    sizes = [len(claim.parts) + 2.2 for _, claim in mapped]
    figure = new_figure(10, 0.27 * sum(sizes))
    panels = figure.subplots(len(mapped), 1, squeeze=False, height_ratios=sizes)[:, 0]
    for axes, (name, claim) in zip(panels, mapped, strict=True):
        _panel(axes, name, claim)
    return figure


def _panel(axes: Any, name: str, claim: Claim) -> None:
    low, high = _ends(claim)
    for y, part in enumerate(claim.parts):
        x, colour = part.ours.mean, COLOURS[part.verdict]
        if math.isnan(x):
            axes.text(low, y, " not measured", va="center", fontsize=9, color=colour)
            continue
        at = min(max(x, low), high)
        if not math.isnan(part.ours.low):
            ends = [min(max(end, low), high) for end in (part.ours.low, part.ours.high)]
            axes.plot(ends, [y, y], color=colour, lw=1.5)
        inside = "none" if part.question else colour
        axes.plot(at, y, "o", color=colour, mfc=inside, ms=7, zorder=3)
        beyond = " >" if x > high else " <" if x < low else ""
        axes.annotate(
            f"{shown(x, 3)}{beyond}",
            (at, y),
            (0, 5),
            textcoords="offset points",
            ha="center",
            fontsize=9,
        )
    good = next((part.good for part in claim.parts if not part.question), (None, None))
    if good != (None, None):
        ends = [
            end if end is not None else limit for end, limit in zip(good, (low, high), strict=True)
        ]
        axes.axvspan(*ends, color=COLOURS[Verdict.REPRODUCED], alpha=0.1, lw=0)
    names = [f"{part.sentence}{' (ours)' if part.question else ''}" for part in claim.parts]
    axes.set_yticks(range(len(names)), [_plain(name) for name in names])
    axes.set_ylim(len(names) - 0.5, -1.0)
    axes.set_xlim(low, high)
    axes.set_title(textwrap.fill(_plain(f"{name}: {claim.paper}"), 72), fontsize=10, loc="left")
    axes.set_xlabel(claim.unit.removesuffix(f" ({_shown(claim)})"))
    axes.grid(alpha=0.3, axis="x")


def _plain(text: str) -> str:
    """Dollars as they are: to matplotlib they begin a formula."""
    return text.replace("$", r"\$")


def _shown(claim: Claim) -> str:
    """The setting whose number the claim has."""
    same = (part.sentence for part in claim.parts if part.ours == claim.ours and not part.question)
    return next(same, "")


def _ends(claim: Claim) -> tuple[float, float]:
    """Of the x-axis: the numbers and the ends of where it reproduces, without what is far away."""
    ends = [end for part in claim.parts for end in part.good if end is not None]
    means = [part.ours.mean for part in claim.parts if math.isfinite(part.ours.mean)]
    anchor = sorted([*ends, *means])
    if not anchor:
        return 0.0, 1.0
    middle = anchor[len(anchor) // 2]
    spread = (
        sorted(abs(value - middle) for value in anchor)[(3 * len(anchor)) // 4]
        or abs(middle)
        or 1.0
    )
    near = [value for value in anchor if abs(value - middle) <= FAR * spread]
    room = 0.12 * ((max(near) - min(near)) or abs(middle) or 1.0)
    return min(near) - room, max(near) + room
