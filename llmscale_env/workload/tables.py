"""The shipped tables: joint quantiles of lengths, arrivals per bin, hour factors.

A table is a small CSV under `workload/data`, remade from raw traces by
`python -m llmscale_env.traces build-tables`. Its first lines, `# key: value`, say where it comes
from. Reading one is cheap and cached.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

DATA = Path(__file__).parent / "data"

About = tuple[tuple[str, str], ...]
"""The `key: value` lines at the head of a table file."""

N_BINS = 64
"""Bins of equal probability over the input length."""

_TAIL = (0.0001, 0.0002, 0.001, 0.002, 0.005, 0.01, 0.02)
INPUT_LEVELS: NDArray[np.float64] = np.unique(
    np.concatenate([np.arange(129) / 128, _TAIL, 1 - np.array([0.0005, *_TAIL])])
)
"""Quantile levels of the input marginal: every edge of the bins, and finer in both tails."""

OUTPUT_LEVELS: NDArray[np.float64] = np.unique(
    np.concatenate([np.arange(33) / 32, [0.01, 0.02, 0.98, 0.99, 0.995]])
)
"""Quantile levels of the output within a bin."""

_QUANTILES: Literal["hazen"] = "hazen"
"""Of NumPy's definitions the one that keeps the mean of short, heavy-tailed bins best (0.8 %)."""


_CELLS = 16384
"""Equal cells of [0, 1), a power of two: which one a number is in, is exact."""


@lru_cache(maxsize=64)
def _guide(levels: bytes) -> NDArray[np.intp] | None:
    """(_CELLS,) the last level at or below the begin of each cell; None if a cell has two more inside."""
    values = np.frombuffer(levels)
    edges = np.searchsorted(values, np.arange(_CELLS + 1) / _CELLS, side="right") - 1
    return edges[:-1] if (np.diff(edges) <= 1).all() else None


def places_of(u: NDArray[np.float64], levels: NDArray[np.float64]) -> NDArray[np.intp]:
    """The last of `levels` (rising, from 0 to 1) that is at most `u` (0 <= u < 1).

    The same as a binary search, which takes ten times as long where `u` is in no order.
    """
    guide = _guide(levels.tobytes())
    if guide is None:
        return np.searchsorted(levels, u, side="right") - 1
    k = guide[(u * _CELLS).astype(np.intp)]
    return k + (u >= levels[k + 1])


def interpolate_uniform(
    u: NDArray[np.float64], levels: NDArray[np.float64], values: NDArray[np.float64]
) -> NDArray[np.float64]:
    """`values` at `u`, linear between `levels` (levels from 0 to 1, 0 <= u < 1).

    Written in single array operations: unlike `np.interp`, no compiler can fuse a multiplication
    with an addition here, so every machine gives the same bits.
    """
    k = places_of(u, levels)
    slope = np.diff(values) / np.diff(levels)
    step = (u - levels[k]) * slope[k]
    return values[k] + step


def round_tokens(values: NDArray[np.float64], most: int) -> NDArray[np.int32]:
    """Nearest whole number of tokens, held in 1..`most`."""
    return np.clip(np.floor(values + 0.5), 1, most).astype(np.int32)


@dataclass(frozen=True)
class LengthTable:
    """Joint distribution of input and output tokens: an input marginal and conditional outputs.

    Attributes:
        input_tokens: (len(INPUT_LEVELS),) quantiles of the input.
        output_tokens: (N_BINS, len(OUTPUT_LEVELS)) quantiles of the output, given that the input
            lies in the k-th of 64 bins of equal probability.
        about: `key: value` lines of the file (source, licence, kind, rows).
    """

    input_tokens: NDArray[np.float64]
    output_tokens: NDArray[np.float64]
    about: About = ()

    @classmethod
    def from_pairs(
        cls,
        input_tokens: NDArray[Any],
        output_tokens: NDArray[Any],
        about: About = (),
    ) -> LengthTable:
        """Quantiles of measured pairs; at least 64 of them.

        Equal inputs that several bins share are dealt to them by their output in turn, so that
        these bins look alike whatever order the file has.

        Raises:
            ValueError: with fewer than 64 pairs.
        """
        n = len(input_tokens)
        if n < N_BINS:
            raise ValueError(f"a length table needs at least {N_BINS} pairs, got {n}")
        x = np.asarray(input_tokens, dtype=np.float64)
        y = np.asarray(output_tokens, dtype=np.float64)
        # A fixed low-discrepancy sequence over the outputs' order breaks ties among equal inputs.
        by_output = np.empty(n)
        by_output[np.argsort(y, kind="stable")] = (np.arange(n) * 0.6180339887498949) % 1.0
        order = np.lexsort((by_output, x))
        edges = (np.arange(N_BINS + 1) * n) // N_BINS
        outputs = np.stack(
            [
                np.quantile(y[order[a:b]], OUTPUT_LEVELS, method=_QUANTILES)
                for a, b in pairwise(edges)
            ]
        )
        return cls(np.quantile(x, INPUT_LEVELS, method=_QUANTILES), outputs, about)

    @cached_property
    def _slopes(self) -> NDArray[np.float64]:
        return np.diff(self.output_tokens, axis=1) / np.diff(OUTPUT_LEVELS)

    @cached_property
    def bin_mean_output(self) -> NDArray[np.float64]:
        """(N_BINS,) mean output in each bin of the input."""
        middle = (self.output_tokens[:, 1:] + self.output_tokens[:, :-1]) / 2
        return np.cumsum(middle * np.diff(OUTPUT_LEVELS), axis=1)[:, -1]

    def sample(
        self, n: int, rng: np.random.Generator
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """`n` pairs (input, output) as real numbers, by inverse transform of two uniforms."""
        u = rng.random((n, 2))
        inputs = interpolate_uniform(u[:, 0], INPUT_LEVELS, self.input_tokens)
        rows = (u[:, 0] * N_BINS).astype(np.intp)
        k = places_of(u[:, 1], OUTPUT_LEVELS)
        step = (u[:, 1] - OUTPUT_LEVELS[k]) * self._slopes[rows, k]
        return inputs, self.output_tokens[rows, k] + step

    def mean_output_given_input(self, input_tokens: NDArray[Any]) -> NDArray[np.float64]:
        """Mean output of the requests that have this (rounded) input: what a router can learn.

        An input of x tokens stands for the levels between those of x - 1/2 and x + 1/2; the output
        depends on the level's bin alone, so the mean is that of the bins, weighted by how much of
        each lies between.
        """
        low = self._level(input_tokens - 0.5)
        high = self._level(input_tokens + 0.5)
        width = high - low
        thin = width < 1e-9
        mean = (self._mean_below(high) - self._mean_below(low)) / np.where(thin, 1.0, width)
        inside = np.minimum((low * N_BINS).astype(np.intp), N_BINS - 1)
        means = self.bin_mean_output
        return np.where(thin, means[inside], np.clip(mean, means.min(), means.max()))

    @cached_property
    def _means(self) -> NDArray[np.float64]:
        """`mean_output_given_input` of 0, 1, 2, ... tokens, up to the longest input."""
        return self.mean_output_given_input(np.arange(int(self.input_tokens[-1]) + 2))

    def mean_outputs(self, input_tokens: NDArray[np.integer[Any]]) -> NDArray[np.float64]:
        """`mean_output_given_input` of whole numbers of tokens, none above the longest input rounded."""
        return self._means[input_tokens]

    def _level(self, tokens: NDArray[np.float64]) -> NDArray[np.float64]:
        """Share of inputs below: the inverse of the input's quantile function."""
        values = self.input_tokens
        k = np.clip(np.searchsorted(values, tokens, side="right") - 1, 0, len(values) - 2)
        rise = np.diff(values)[k]
        part = np.clip((tokens - values[k]) / np.where(rise > 0, rise, 1.0), 0.0, 1.0)
        step = part * np.diff(INPUT_LEVELS)[k]
        return INPUT_LEVELS[k] + step

    def _mean_below(self, level: NDArray[np.float64]) -> NDArray[np.float64]:
        """Integral of the output's mean over the levels from 0."""
        total = np.concatenate([[0.0], np.cumsum(self.bin_mean_output)]) / N_BINS
        k = np.minimum((level * N_BINS).astype(np.intp), N_BINS - 1)
        step = (level - k / N_BINS) * self.bin_mean_output[k]
        return total[k] + step


@dataclass(frozen=True)
class CountTable:
    """Arrivals per bin of a real trace.

    Attributes:
        bin_s: width of a bin in seconds.
        counts: (n,) int64 arrivals in bin k, `[k * bin_s, (k + 1) * bin_s)` after the first one.
        about: as in `LengthTable`.
    """

    bin_s: float
    counts: NDArray[np.int64]
    about: About = ()

    @property
    def duration_s(self) -> float:
        return self.bin_s * len(self.counts)

    @property
    def rate_per_s(self) -> float:
        """Mean rate over the whole table."""
        return int(self.counts.sum()) / self.duration_s


@dataclass(frozen=True)
class RateTable:
    """Hourly rates of the parts of a service.

    Attributes:
        rpm: by series, (n,) requests per minute in each hour.
        about: as in `LengthTable`.
    """

    rpm: dict[str, NDArray[np.float64]]
    about: About = ()


def names(kind: str) -> tuple[str, ...]:
    """Names of the shipped tables of a kind ("lengths", "counts", "rates" or "days")."""
    return tuple(sorted(p.stem.removeprefix(f"{kind}_") for p in DATA.glob(f"{kind}_*.csv")))


def read_rows(path: Path) -> tuple[About, list[tuple[str, list[float]]]]:
    """The `# key: value` lines of a table file and its rows `name,number,...`."""
    about: list[tuple[str, str]] = []
    rows: list[tuple[str, list[float]]] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            key, _, value = line[1:].partition(":")
            about.append((key.strip(), value.strip()))
        elif line:
            name, *values = line.split(",")
            rows.append((name, [float(v) for v in values]))
    return tuple(about), rows


def write_rows(path: Path, about: About, rows: list[tuple[str, NDArray[Any]]]) -> None:
    """Write a table file, numbers to three decimals; the same input gives the same bytes."""

    def short(x: float) -> str:
        return f"{x:.3f}".rstrip("0").rstrip(".")

    lines = [f"# {key}: {value}" for key, value in about]
    lines += [",".join([name, *(short(float(v)) for v in values)]) for name, values in rows]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _shipped(kind: str, name: str) -> Path:
    path = DATA / f"{kind}_{name}.csv"
    if name not in names(kind):
        raise ValueError(f"table = {name!r}: no such {kind} table; there are {list(names(kind))}")
    return path


@lru_cache(maxsize=64)
def load_lengths(name: str) -> LengthTable:
    """A shipped length table.

    Raises:
        ValueError: if there is none of this name (the message lists them).
    """
    about, rows = read_rows(_shipped("lengths", name))
    values = [np.array(row) for _, row in rows]
    return LengthTable(values[0], np.stack(values[1:]), about)


@lru_cache(maxsize=64)
def load_clipped(name: str, max_output_tokens: int) -> LengthTable:
    """A shipped length table with no output longer than this.

    Raises:
        ValueError: as `load_lengths`.
    """
    table = load_lengths(name)
    return LengthTable(table.input_tokens, np.minimum(table.output_tokens, max_output_tokens))


@lru_cache(maxsize=64)
def load_counts(name: str) -> CountTable:
    """A shipped table of arrivals per bin.

    Raises:
        ValueError: if there is none of this name (the message lists them).
    """
    about, rows = read_rows(_shipped("counts", name))
    counts = np.concatenate([np.array(row) for _, row in rows]).astype(np.int64)
    counts.setflags(write=False)
    return CountTable(float(dict(about)["bin_s"]), counts, about)


@lru_cache(maxsize=16)
def load_rates(name: str) -> RateTable:
    """A shipped table of hourly rates.

    Raises:
        ValueError: if there is none of this name (the message lists them).
    """
    about, rows = read_rows(_shipped("rates", name))
    rpm = {}
    for series, values in rows:
        rpm[series] = np.array(values)
        rpm[series].setflags(write=False)
    return RateTable(rpm, about)


@lru_cache(maxsize=16)
def load_days(name: str) -> NDArray[np.float64]:
    """(days, 144) a shipped table of days: the rate of every ten minutes over the mean of all.

    Raises:
        ValueError: if there is none of this name (the message lists them).
    """
    _, rows = read_rows(_shipped("days", name))
    days = np.array([values for _, values in rows])
    days.setflags(write=False)
    return days


@lru_cache(maxsize=1)
def load_hour_factors() -> dict[str, tuple[float, ...]]:
    """Shipped hour-of-day factors (mean 1) by profile name."""
    _, rows = read_rows(DATA / "hour_factors.csv")
    return {name: tuple(values) for name, values in rows}
