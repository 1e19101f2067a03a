"""What most figures do alike: a grid of runs, a number per seed, lines with a band, axes, rows of claims.

A figure declares what is its own and takes the rest from here:

    cases = Grid({"seed": SEEDS, "llm": "llms", "batch_limit": "batch_limits"}, keep=("lengths",))

    @claimed
    def claims(frame, parameters):
        for llm in parameters.llms:
            mine = frame[frame["llm"] == llm]
            yield at_least("It doubles", 2.0, by_seed(mine, doubled), nothing=1.0, unit="x")
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeAlias

from agents.statistics import Interval, mean_interval
from experiments.harness.claims import Claim
from experiments.harness.parameters import Parameters

if TYPE_CHECKING:
    from pandas import DataFrame

Case: TypeAlias = dict[str, Any]
Values: TypeAlias = str | Iterable[Any] | Callable[[Any, Case], Iterable[Any]]
_Arguments = ParamSpec("_Arguments")

SEEDS = "seeds"
"""In a `Grid`: the seeds of the runs."""
BAND = ("min", "max")
"""The range of all values at a place."""


@dataclass(frozen=True)
class Grid:
    """The runs of a figure: one per combination of what it varies; the last column changes fastest.

    Attributes:
        over: by column of a case, what it goes over: the name of a parameter, values, or a function of the
            parameters and of the case as it is so far. A value that is a mapping brings columns of its own,
            so that several change together.
        keep: parameters that each case holds as they are, where nothing varies them.
        first: columns that come first in a case, where that is not the order of `over`.
    """

    over: Mapping[str, Values]
    keep: tuple[str, ...] = ()
    first: tuple[str, ...] = ()

    def __call__(self, parameters: Any) -> list[Case]:
        """The cases of these parameters."""
        found: list[Case] = [{}]
        for column, values in self.over.items():
            found = [
                case | (dict(value) if isinstance(value, Mapping) else {column: plain(value)})
                for case in found
                for value in _values(values, parameters, case)
            ]
        kept = {name: plain(getattr(parameters, name)) for name in self.keep}
        whole = [kept | case for case in found]
        return [
            {name: case[name] for name in (*self.first, *varied, *kept)}
            for case, varied in zip(whole, found, strict=True)
        ]


def plain(value: Any) -> Any:
    """As JSON has it, so that a case is the same when it is read back: tuples as lists."""
    return list(value) if isinstance(value, tuple) else value


def _values(values: Values, parameters: Parameters, case: Case) -> Iterable[Any]:
    if values == SEEDS:
        return parameters.seed_list()
    if isinstance(values, str):
        return getattr(parameters, values)
    return values(parameters, case) if callable(values) else values


# ---- numbers ----


def where(frame: DataFrame, **values: Any) -> DataFrame:
    """The rows with these values."""
    for column, value in values.items():
        frame = frame[frame[column] == value]
    return frame


def by_seed(frame: DataFrame, number: Callable[[DataFrame], Any]) -> Interval:
    """A number of each seed's rows, and its interval; infinite, without bounds, if it is for any seed."""
    values = [float(number(mine)) for _, mine in frame.groupby("seed")]
    return Interval(math.inf, math.nan, math.nan) if math.inf in values else mean_interval(values)


def interval_of(column: Any) -> Interval:
    """The interval of a column that may hold Python's numbers."""
    return mean_interval(column.astype(float))


def wide(frame: DataFrame, columns: str, values: str) -> DataFrame:
    """A row per seed, a column per value of `columns`."""
    return frame.pivot(index="seed", columns=columns, values=values).astype(float)


def claimed(
    rows: Callable[_Arguments, Iterable[Claim]],
) -> Callable[_Arguments, list[Claim]]:
    """A generator of claims as the function that gives their list."""

    @wraps(rows)
    def listed(*args: _Arguments.args, **words: _Arguments.kwargs) -> list[Claim]:
        return list(rows(*args, **words))

    return listed


def listed(
    values: Mapping[Any, Any] | Any,
    unit: str = "",
    form: str = ".3g",
    *,
    scale: float = 1.0,
    place: str = "",
) -> str:
    """Numbers by place, in words: "9x at 1, 1.2x at 8"; `scale` and the unit `place` are of places."""
    return ", ".join(f"{value:{form}}{unit} at {scale * n:g}{place}" for n, value in values.items())


# ---- pictures ----


def line(
    axes: Any,
    frame: DataFrame,
    x: str,
    y: str,
    style: str = "o-",
    *,
    scale: float = 1.0,
    along: float = 1.0,
    middle: str = "mean",
    band: tuple[str | float, str | float] | None = BAND,
    shade: float = 0.15,
    edge: float | None = 0.0,
    **look: Any,
) -> None:
    """The middle of `y` at each `x`, and a band around it.

    Args:
        axes: to draw on.
        frame: rows.
        x, y: columns.
        style: matplotlib's, of the line.
        scale: of `y`.
        along: `x` is divided by it.
        middle: what is drawn of the values at a place.
        band: its ends, as names of statistics or as quantiles; None: no band.
        shade: opacity of the band.
        edge: width of its edge; None: matplotlib's.
        look: of the line, as `color`, `ms` and `label`.
    """
    grouped = frame.groupby(x)[y]
    values = scale * getattr(grouped, middle)()
    places = values.index / along if along != 1.0 else values.index
    (drawn,) = axes.plot(places, values, style, **look)
    if band is not None:
        low, high = (
            scale * (getattr(grouped, end)() if isinstance(end, str) else grouped.quantile(end))
            for end in band
        )
        width = {} if edge is None else {"lw": edge}
        axes.fill_between(places, low, high, color=drawn.get_color(), alpha=shade, **width)


def lines(
    axes: Any,
    frame: DataFrame,
    by: str,
    names: Iterable[str],
    styles: Mapping[str, tuple[str, str, str]],
    x: str,
    y: str,
    **look: Any,
) -> None:
    """A `line` per name in the column `by`: `styles` has a label, a colour and a style for it."""
    for name in names:
        mine = where(frame, **{by: name})
        label, colour, style = styles.get(name, (name, None, "x-"))
        if not mine.empty:
            line(axes, mine, x, y, style, color=colour, label=label, **look)


def dress(
    axes: Any,
    *,
    title: str = "",
    size: float = 10,
    log: str = "",
    ticks: Iterable[float] | None = None,
    bottom: float | None = None,
    legend: Mapping[str, Any] | str | None = None,
    lines: str = "both",
    **properties: Any,
) -> None:
    """What the axes of most pictures have.

    Args:
        axes: to dress.
        title: above, with letters of `size`.
        size: of the title.
        log: the axes with a logarithmic scale: "", "x", "y" or "xy".
        ticks: of the x-axis, and no others.
        bottom: least of the y-axis.
        legend: where, or all that `legend` is told.
        lines: of the grid: "both", "x" or "y".
        properties: for `Axes.set`, as `xlabel`.
    """
    axes.set(**{f"{axis}scale": "log" for axis in log}, **properties)
    if title:
        axes.set_title(title, fontsize=size)
    if ticks is not None:
        axes.set_xticks(list(ticks), [f"{tick:g}" for tick in ticks])
        axes.minorticks_off()
    if bottom is not None:
        axes.set_ylim(bottom=bottom)
    axes.grid(alpha=0.3, axis=lines)
    if legend is not None:
        axes.legend(**{"fontsize": 8, **({"loc": legend} if isinstance(legend, str) else legend)})


def paper_stars(axes: Any, x: Iterable[Any], y: Iterable[float], label: str) -> None:
    """Stars where a number of the paper lies that it tells from another, which here is one of ours.

    What it gives in itself a figure declares (`harness.picture.Published`). The label says from what it is
    told, and where.
    """
    axes.plot(list(x), list(y), "*", color="k", ms=10, ls="none", zorder=6, label=label)


def legend_below(figure: Any, axes: Any, columns: int | None = None, place: str = "lower") -> None:
    """One legend for all panels, of what one of them shows."""
    handles, labels = axes.get_legend_handles_labels()
    look = {"loc": f"outside {place} center", "fontsize": 8}
    figure.legend(handles, labels, ncols=columns or len(labels), **look)


def places(n: int, of: int, groups: int) -> tuple[Any, float]:
    """Where the n-th of `of` bars stands in each group, and how wide a bar is with its gap."""
    import numpy as np

    width = 0.8 / of
    return np.arange(groups) + (n - (of - 1) / 2) * width, width
