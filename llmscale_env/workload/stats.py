"""What a trace looks like: rate, burstiness, spikes, lengths; as numbers, text and a picture."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from llmscale_env._writing import replace_file
from llmscale_env.workload.requests import PS_PER_S

LENGTH_PERCENTILES = (1, 10, 25, 50, 75, 90, 99, 100)
WIDTHS_S = (15.0, 60.0)
"""Of the windows in which arrivals are counted."""


@dataclass(frozen=True)
class WindowStats:
    """Counts in consecutive windows.

    Attributes:
        width_s: width of the windows; a part of a window at the end is left out.
        ratio: p50, p90, p99 and maximum of a window's count over the count of the one before
            (windows whose predecessor is empty are left out); Chiron's request spikes. NaN if no
            window has a predecessor with requests.
        empty_share: share of windows without a request.
        dispersion: variance of the counts over their mean (1 for a Poisson process).
        peak_over_mean: largest count over the mean.
    """

    width_s: float
    ratio: tuple[float, float, float, float]
    empty_share: float
    dispersion: float
    peak_over_mean: float


@dataclass(frozen=True)
class LengthStats:
    """Mean, percentiles (`LENGTH_PERCENTILES`) of one length in tokens."""

    mean: float
    percentiles: tuple[float, ...]


@dataclass(frozen=True)
class TraceStats:
    """Statistics of arrivals and lengths; arrival fields are None for lengths alone.

    Attributes:
        n: requests.
        duration_s: from first to last arrival.
        rate_per_s: requests over duration.
        cv: coefficient of variation of the gaps between arrivals (1 for a Poisson process).
        windows: counts in windows of `WIDTHS_S`.
        input, output: lengths; None for counts alone.
        spearman: rank correlation of input and output.
    """

    n: int
    duration_s: float | None
    rate_per_s: float | None
    cv: float | None
    windows: tuple[WindowStats, ...]
    input: LengthStats | None
    output: LengthStats | None
    spearman: float | None


def window_stats(arrival_s: NDArray[np.float64], width_s: float) -> WindowStats | None:
    """Counts of sorted arrivals in whole windows from time 0; None with fewer than two windows."""
    counts, ratio = _counts(arrival_s, width_s)
    if len(counts) < 2:
        return None
    if not len(ratio):
        ratio = np.array([np.nan])
    mean = counts.mean()
    return WindowStats(
        width_s,
        tuple(float(v) for v in (*np.percentile(ratio, (50, 90, 99)), ratio.max())),  # type: ignore[arg-type]
        float((counts == 0).mean()),
        float(counts.var() / mean),
        float(counts.max() / mean),
    )


def _counts(
    arrival_s: NDArray[np.float64], width_s: float
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Arrivals by window, and each count over the one before where that is not 0."""
    # The window that the last arrival lies in is only partly seen.
    counts = np.bincount((arrival_s / width_s).astype(np.int64))[: int(arrival_s[-1] / width_s)]
    before, after = counts[:-1], counts[1:]
    return counts, after[before > 0] / before[before > 0]


def spearman(x: NDArray, y: NDArray) -> float:
    """Rank correlation (mean ranks for ties); NaN if one side is constant."""

    def ranks(values: NDArray) -> NDArray[np.float64]:
        _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
        last = np.cumsum(counts)
        return (last - (counts - 1) / 2)[inverse]

    a, b = ranks(x), ranks(y)
    a, b = a - a.mean(), b - b.mean()
    scale = float(np.sqrt((a @ a) * (b @ b)))
    return float(a @ b) / scale if scale > 0 else float("nan")


def _length_stats(tokens: NDArray) -> LengthStats:
    values = np.percentile(tokens, LENGTH_PERCENTILES)
    return LengthStats(float(np.mean(tokens)), tuple(float(v) for v in values))


def trace_stats(
    arrival_ps: NDArray[np.int64] | None,
    input_tokens: NDArray | None,
    output_tokens: NDArray | None,
) -> TraceStats:
    """Statistics of sorted arrivals, of lengths, or of both (None leaves a part out).

    Raises:
        ValueError: with nothing to look at.
    """
    some = arrival_ps if arrival_ps is not None else input_tokens
    if some is None or len(some) == 0:
        raise ValueError("no requests: nothing to take statistics of")
    duration = rate = cv = None
    windows: list[WindowStats] = []
    if arrival_ps is not None and len(arrival_ps) > 1:
        since_s = (arrival_ps - arrival_ps[0]) / PS_PER_S
        duration = float(since_s[-1])
        gaps = np.diff(since_s)
        if duration > 0:
            rate = len(since_s) / duration
            cv = float(gaps.std() / gaps.mean())
            found = (window_stats(since_s, width) for width in WIDTHS_S)
            windows = [w for w in found if w is not None]
    both = input_tokens is not None and output_tokens is not None
    return TraceStats(
        n=len(some),
        duration_s=duration,
        rate_per_s=rate,
        cv=cv,
        windows=tuple(windows),
        input=None if input_tokens is None else _length_stats(input_tokens),
        output=None if output_tokens is None else _length_stats(output_tokens),
        spearman=spearman(input_tokens, output_tokens) if both else None,  # type: ignore[arg-type]
    )


def format_stats(stats: TraceStats) -> str:
    """The statistics as lines of text."""
    lines = [f"requests          {stats.n:,}"]
    if stats.rate_per_s is not None:
        lines += [
            f"duration          {stats.duration_s:,.1f} s",
            f"rate              {stats.rate_per_s:.3f} requests/s",
            f"CV of gaps        {stats.cv:.2f}   (Poisson: 1)",
        ]
    for w in stats.windows:
        p50, p90, p99, top = w.ratio
        lines += [
            f"{w.width_s:g} s windows",
            f"  ratio to the one before   p50 {p50:.2f}  p90 {p90:.2f}  p99 {p99:.2f}  "
            f"max {top:.2f}",
            f"  empty {w.empty_share:.0%}  variance/mean {w.dispersion:.1f}  "
            f"peak/mean {w.peak_over_mean:.2f}",
        ]
    if stats.input is not None and stats.output is not None:
        head = "".join(f"{f'p{p}':>9}" for p in LENGTH_PERCENTILES)
        lines.append(f"tokens        mean{head}")
        for name, part in (("input", stats.input), ("output", stats.output)):
            row = "".join(f"{v:9.0f}" for v in part.percentiles)
            lines.append(f"  {name:<8}{part.mean:8.1f}{row}")
        lines.append(f"  rank correlation of input and output {stats.spearman:.2f}")
    return "\n".join(lines)


def plot_stats(
    path: Path,
    title: str,
    arrival_ps: NDArray[np.int64] | None,
    input_tokens: NDArray | None,
    output_tokens: NDArray | None,
) -> None:
    """Draw rate over time, spike ratios, length distributions and input against output.

    Raises:
        ImportError: without matplotlib (extra `plots`).
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 7.5), layout="constrained")
    FigureCanvasAgg(figure)
    rate, spikes, lengths, joint = figure.subplots(2, 2).ravel()
    figure.suptitle(title)
    if arrival_ps is not None and len(arrival_ps) > 1:
        since_s = (arrival_ps - arrival_ps[0]) / PS_PER_S
        width = 1.0 if since_s[-1] <= 7200 else float(since_s[-1]) / 3600
        counts = np.bincount((since_s / width).astype(np.int64))
        rate.plot(np.arange(len(counts)) * width, counts / width, lw=0.6, color="C0", alpha=0.5)
        coarse = max(int(15 / width), 1)
        smooth = np.convolve(counts, np.ones(coarse) / coarse, mode="same") / width
        rate.plot(np.arange(len(counts)) * width, smooth, lw=1.4, color="C1", label="15 s mean")
        rate.legend(loc="upper right")
        for w in WIDTHS_S:
            ratio = np.sort(_counts(since_s, w)[1])
            if len(ratio):
                place = np.arange(1, len(ratio) + 1) / len(ratio)
                spikes.plot(ratio, place, label=f"{w:g} s", drawstyle="steps-post")
        spikes.legend(loc="lower right")
    rate.set(xlabel="time (s)", ylabel="requests/s", title="Arrivals")
    spikes.set(
        xlabel="count over the count of the window before",
        ylabel="share of windows",
        title="Request spikes",
        xscale="symlog",
    )
    if input_tokens is not None and output_tokens is not None:
        for name, tokens in (("input", input_tokens), ("output", output_tokens)):
            ordered = np.sort(tokens)
            step = max(len(ordered) // 4000, 1)
            share = np.arange(1, len(ordered) + 1) / len(ordered)
            lengths.plot(ordered[::step], share[::step], label=name)
        lengths.legend(loc="lower right")
        some = slice(None, None, max(len(input_tokens) // 5000, 1))
        joint.plot(input_tokens[some], output_tokens[some], ".", ms=2, alpha=0.4)
    lengths.set(xlabel="tokens", ylabel="share of requests", title="Lengths", xscale="log")
    joint.set(
        xlabel="input tokens",
        ylabel="output tokens",
        title="Input against output",
        xscale="log",
        yscale="log",
    )
    replace_file(path, partial(figure.savefig, dpi=120))
