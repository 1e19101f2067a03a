"""Fits a generator to a trace: rate levels to its arrivals per second, log-normals to its lengths.

`python -m llmscale_env.traces fit NAME` prints the result as a stream of a workload, with a table that holds
draws of it against the trace.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from llmscale_env.workload.config import MAX_TOKENS, LevelArrivals, LognormalLengths

_LEAST_RATE = 1e-4
"""Per bin: what a level without arrivals is given while it is fitted, so that it stays possible."""


def rises(counts: NDArray[np.integer], base: float, within: int = 2) -> NDArray[np.float64]:
    """(n,) largest of the next `within` bins over each bin of at least `base` arrivals, else NaN.

    Args:
        counts: arrivals per bin.
        base: bins below it are left out: from nothing, every rise is infinite.
        within: bins.
    """
    n = len(counts)
    after = np.zeros(n)
    for k in range(1, min(within, n - 1) + 1):
        after[: n - k] = np.maximum(after[: n - k], counts[k:])
    return np.where(counts >= max(base, 1), after / np.maximum(counts, 1), np.nan)


def fit_levels(
    counts: NDArray[np.integer], levels: int = 4, bin_s: float = 1.0, rounds: int = 60
) -> LevelArrivals:
    """Rate levels by maximum likelihood: a hidden Markov chain with Poisson counts (Baum and Welch).

    The better of two starts, from the quantiles of the counts and from even steps of their roots, so the same
    counts give the same levels; it may be a local maximum.

    Args:
        counts: (n,) arrivals per bin.
        levels: how many.
        bin_s: width of a bin.
        rounds: of expectation and maximisation.

    Raises:
        ValueError: fewer than two levels or than 20 bins per level, or no arrivals.
    """
    x = np.asarray(counts, dtype=np.float64)
    if levels < 2 or len(x) < 20 * levels or not x.any():
        raise ValueError(
            f"levels = {levels}: needs at least 2, 20 bins for each (there are {len(x)}), and arrivals"
        )
    quantiles = np.quantile(x, (np.arange(levels) + 0.5) / levels)
    spread = np.linspace(0.0, np.sqrt(np.quantile(x, 0.995)), levels) ** 2
    best = -np.inf
    for start in (quantiles, spread):
        # Levels that start alike would stay so.
        now = np.maximum(start + 0.1 * np.arange(levels) * max(x.mean(), 0.1), _LEAST_RATE)
        chain = np.full((levels, levels), 0.1 / (levels - 1))
        np.fill_diagonal(chain, 0.9)
        first = np.full(levels, 1 / levels)
        fit = -np.inf
        for _ in range(rounds):
            now, chain, first, fit = _round(x, now, chain, first)
        if fit > best:
            best, rates, move = fit, now, chain
    order = np.argsort(rates)
    rates, move = rates[order], move[np.ix_(order, order)]
    leave = np.maximum(1 - np.diag(move), 1e-9)
    follow = move / leave[:, None]
    np.fill_diagonal(follow, 0.0)
    follow = np.round(follow / np.maximum(follow.sum(axis=1, keepdims=True), 1e-300), 4)
    for k, row in enumerate(follow):
        row[np.argmax(row) if row.any() else (k + 1) % levels] += 1 - row.sum()
    rates = np.where(rates <= _LEAST_RATE, 0.0, rates) / bin_s
    return LevelArrivals(
        rates_per_s=tuple(float(f"{r:.4g}") for r in rates),
        mean_stays_s=tuple(float(f"{bin_s / p:.4g}") for p in leave),
        next=tuple(tuple(round(float(v), 4) for v in row) for row in follow),
    )


def _round(
    x: NDArray[np.float64],
    rates: NDArray[np.float64],
    move: NDArray[np.float64],
    first: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64], float]:
    """One round of expectation and maximisation, and the log-likelihood before it (up to a constant)."""
    log_p = x[:, None] * np.log(rates) - rates
    highest = log_p.max(axis=1, keepdims=True)
    p = np.exp(log_p - highest) + 1e-300
    n, levels = p.shape
    ahead = np.empty((n, levels))
    back = np.ones((n, levels))
    scale = np.empty(n)
    here = first * p[0]
    for t in range(n):
        if t > 0:
            here = (ahead[t - 1] @ move) * p[t]
        scale[t] = here.sum()
        ahead[t] = here / scale[t]
    for t in range(n - 2, -1, -1):
        back[t] = move @ (p[t + 1] * back[t + 1]) / scale[t + 1]
    at = ahead * back
    at /= at.sum(axis=1, keepdims=True)
    onward = (p[1:] * back[1:]) / scale[1:, None]
    moves = move * (ahead[:-1].T @ onward)
    new_move = (moves + 1e-12) / (moves + 1e-12).sum(axis=1, keepdims=True)
    new_rates = (at * x[:, None]).sum(axis=0) / np.maximum(at.sum(axis=0), 1e-12)
    likelihood = float(np.log(scale).sum() + highest.sum())
    return np.maximum(new_rates, _LEAST_RATE), new_move, at[0], likelihood


def fit_lengths(
    input_tokens: NDArray[np.integer], output_tokens: NDArray[np.integer]
) -> LognormalLengths:
    """Log-normal lengths with the means of the trace and the deviations and correlation of its logs.

    A length table (`build-tables`) keeps the whole joint distribution; this is for when a handful of
    numbers is wanted.

    Raises:
        ValueError: with fewer than two requests.
    """
    if len(input_tokens) < 2:
        raise ValueError(f"lengths need at least two requests, got {len(input_tokens)}")
    logs = np.log(np.stack([input_tokens, output_tokens]).astype(np.float64))
    deviation = logs.std(axis=1)
    both = float(deviation[0] * deviation[1])
    centred = logs - logs.mean(axis=1, keepdims=True)
    correlation = float((centred[0] * centred[1]).mean()) / both if both > 0 else 0.0
    return LognormalLengths(
        input_mean_tokens=min(round(float(np.mean(input_tokens)), 1), MAX_TOKENS),
        output_mean_tokens=min(round(float(np.mean(output_tokens)), 1), MAX_TOKENS),
        input_sigma=min(round(float(deviation[0]), 3), 4.0),
        output_sigma=min(round(float(deviation[1]), 3), 4.0),
        log_correlation=min(max(round(correlation, 3), -1.0), 1.0),
        max_input_tokens=int(np.max(input_tokens)),
        max_output_tokens=int(np.max(output_tokens)),
    )
