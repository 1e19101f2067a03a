"""Axes on which estimates of waiting times are judged: R2 above, relative bias below."""

from __future__ import annotations

from typing import Any

TARGET_R2 = 0.99
"""What both Chiron and QLM say of their estimators."""


def mark_accuracy(top: Any, bottom: Any, claimed_at: float, label: str) -> None:
    """Scale two axes, and mark the paper's R2.

    Args:
        top: axes of R2.
        bottom: axes of the estimate over the true wait, less 1.
        claimed_at: length of the queue of which the paper says it.
        label: of the mark in the legend.
    """
    top.axhline(TARGET_R2, color="0.4", lw=0.8)
    top.plot(claimed_at, TARGET_R2, "k*", ms=11, label=label, zorder=5)
    top.set_ylim(0, 1.05)
    bottom.axhline(0, color="0.4", lw=0.8)
    bottom.set_yscale("symlog", linthresh=0.1)
    bottom.set_yticks([-0.1, 0, 0.1, 1, 10], ["-10 %", "0", "+10 %", "+100 %", "+1000 %"])


def label_accuracy(figure: Any, panels: Any) -> None:
    """Labels at the left, one legend below all panels; lines are medians over seeds.

    Args:
        figure: a figure with constrained layout.
        panels: (2, n) its axes, R2 in the first row.
    """
    panels[0, 0].set_ylabel("R2 of the waits (below 0 not shown)")
    panels[1, 0].set_ylabel("estimate over true wait, less 1 (means)")
    handles, labels = panels[0, 0].get_legend_handles_labels()
    figure.suptitle("Lines: median over seeds; bands: 10 to 90 %", fontsize=9)
    figure.legend(handles, labels, fontsize=8, ncols=2, loc="outside lower center")
