"""How a picture becomes readable on a page, whatever the figure that drew it: letters, legends, lines apart.

A figure draws with matplotlib as it likes; `save` makes of it what a page of 900 pixels shows:

- no letters below `LEAST_PT`; titles and names of axes are broken where they are longer than their panel;
- a legend that would cover data goes below: one for all panels where they agree, else one below each;
- lines of the same look get a marker per colour, and lines that coincide are drawn `APART_PT` apart, so that
  each is seen; what they show is off by less than the width of a marker;
- numbers along an axis that run into each other are thinned out, names are broken or turned;
- a panel in which nothing is drawn is left out.

What the paper gives in numbers is `Published`: a figure declares it in `PAPER_POINTS`, and it is drawn
into its panels in black.
"""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

if TYPE_CHECKING:
    from pandas import DataFrame

    from experiments.harness.catalogue import Experiment
    from experiments.harness.parameters import Parameters

PAGE_IN = 10.0
"""Widest picture, in inches of `DPI` pixels: a page's width."""
DPI = 90
LEAST_PT = 9.0
"""Least size of letters: 11 pixels."""
TITLE_PT = 10.0
APART_PT = 1.8
"""By how much lines that coincide are drawn apart, in turn up and to the right, and down and to the left."""
SAME_PX = 1.5
"""Lines coincide where they are no further apart than this."""
SAME_SHARE = 0.25
"""And are drawn apart if they coincide over this share of their points."""
COLOURS = 32
"""Of the palette of a file."""
MARKERS = "os^DvPX*<>hp"


@dataclass(frozen=True)
class Published:
    """Numbers of the paper, drawn into panels of a figure.

    Attributes:
        source: where the paper gives them, as "Figure 3" or "Section 5.2".
        points: (x, y), in the units of the panel; for "level" and "span" one of both counts, see `along`.
        kind: "points" (stars), "line" (dashed, through the points), "level" (a line across at each y) or
            "span" (the area between the least and the greatest y).
        panels: which of the figure's axes, from 0 in the order in which they were made; all if empty.
        picture: key of the picture, where a figure has several.
        label: what it is called; "the paper (SOURCE)" if left out.
        along: of "level" and "span": "y", or "x" where the numbers lie on the x-axis.
    """

    source: str
    points: tuple[tuple[float, float], ...]
    kind: Literal["points", "line", "level", "span"] = "points"
    panels: tuple[int, ...] = ()
    picture: str = ""
    label: str = ""
    along: Literal["x", "y"] = "y"


def pictures_of(experiment: Experiment, frame: DataFrame, parameters: Parameters) -> dict[str, Any]:
    """What an experiment draws, with the paper's numbers, by file name."""
    drawn, name = experiment.plot(frame, parameters), experiment.entry.name
    by_key = drawn if isinstance(drawn, Mapping) else {"": drawn}
    for key, figure in by_key.items():
        draw_published(figure, [one for one in experiment.published if one.picture in ("", key)])
    return {f"{name}-{key}.png" if key else f"{name}.png": one for key, one in by_key.items()}


def is_whole(figure: Any) -> bool:
    """Whether a figure has panels, and something is drawn in each."""
    return bool(figure.axes) and not any(_is_empty(axes) for axes in figure.axes)


def draw_published(figure: Any, published: Iterable[Published]) -> None:
    """Draw the paper's numbers into a figure's panels, with an entry in a legend.

    Raises:
        IndexError: there is no such panel.
    """
    for one in published:
        panels = figure.axes if not one.panels else [figure.axes[k] for k in one.panels]
        name = one.label or f"the paper ({one.source})"
        for axes in panels:
            _draw_one(axes, one, name)
            legend = axes.get_legend()
            known = [] if legend is None else [text.get_text() for text in legend.get_texts()]
            if name not in known and not figure.legends:
                handles, labels = axes.get_legend_handles_labels()
                if legend is not None:
                    handles = [*legend.legend_handles, handles[labels.index(name)]]
                    labels = [*known, name]
                axes.legend(handles, labels, title=legend and legend.get_title().get_text())
        for legend in list(figure.legends):
            handles, labels = panels[0].get_legend_handles_labels()
            known = [text.get_text() for text in legend.get_texts()]
            if name not in known:
                handles = [*legend.legend_handles, handles[labels.index(name)]]
                legend.remove()
                figure.legend(handles, [*known, name], loc="outside lower center")


def _draw_one(axes: Any, one: Published, name: str) -> None:
    xs, ys = zip(*one.points, strict=True)
    if one.kind == "points":
        axes.plot(xs, ys, "*", color="k", ms=11, zorder=6, label=name)
    elif one.kind == "line":
        axes.plot(xs, ys, "--", color="k", lw=1.3, zorder=6, label=name)
    elif one.kind == "level":
        across = axes.axhline if one.along == "y" else axes.axvline
        look = {"color": "k", "ls": "--" if one.along == "y" else "-.", "lw": 1.2, "zorder": 1.5}
        for k, value in enumerate(ys if one.along == "y" else xs):
            across(value, label="_" if k else name, **look)
    else:
        between = axes.axhspan if one.along == "y" else axes.axvspan
        values = ys if one.along == "y" else xs
        between(min(values), max(values), color="k", alpha=0.12, lw=0, zorder=0.5, label=name)


def save(figure: Any, path: Path) -> None:
    """Write a figure as PNG with a palette, readable at the width of a page."""
    from PIL import Image

    finish(figure)
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=DPI, format="png")
    drawn.seek(0)
    with Image.open(drawn) as image:
        few = image.convert("RGB").quantize(
            COLOURS, method=Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE
        )
    few.save(path, format="PNG", optimize=True)


def finish(figure: Any) -> None:
    """Make a figure readable at the width of a page (see the module); done in place."""
    width, height = figure.get_size_inches()
    figure.set_dpi(DPI)
    figure.set_size_inches(min(width, PAGE_IN), height)
    _drop_empty(figure)
    _letters(figure)
    _markers(figure)
    for step in (_place_legends, None, None):  # each changes the room for the next
        figure.draw_without_rendering()
        _break_titles(figure)
        _space_ticks(figure)
        if step is not None:
            figure.draw_without_rendering()
            step(figure)
    figure.draw_without_rendering()
    for axes in figure.axes:
        _draw_apart(axes)


# ---- letters ----


def _letters(figure: Any) -> None:
    from matplotlib.text import Text

    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            for which in ("major", "minor"):
                axis.set_tick_params(which=which, labelsize=LEAST_PT)
        for title in (axes.title, axes.xaxis.label, axes.yaxis.label):
            title.set_fontsize(TITLE_PT)
    for text in figure.findobj(Text):
        if text.get_fontsize() < LEAST_PT:
            text.set_fontsize(LEAST_PT)


def _break_titles(figure: Any) -> None:
    panels = [axes for axes in figure.axes if axes.get_visible()]
    boxes = [axes.get_window_extent() for axes in panels]
    for axes, box in zip(panels, boxes, strict=True):
        beside = [other for other in boxes if other.y0 < box.y1 and other.y1 > box.y0]
        above = [other for other in boxes if other.x0 < box.x1 and other.x1 > box.x0]
        if box.width < 0.08 * figure.bbox.width or box.height < 0.03 * figure.bbox.height:
            continue  # not laid out yet
        across = figure.bbox.width if len(beside) == 1 else box.width + 20
        middle = (box.x0 + box.x1) / 2
        across = min(across, 2 * middle, 2 * (figure.bbox.width - middle) - 8)
        up = figure.bbox.height if len(above) == 1 else box.height + 10
        _break(axes.title, across, 0)
        _break(axes.xaxis.label, across, 0)
        _break(axes.yaxis.label, up, 1)


def _break(text: Any, room: float, way: int) -> None:
    """Break each of a text's lines into as many as fit in `room` pixels, along x (0) or y (1)."""
    whole = text.get_text()
    if not whole.strip():
        return
    size = text.get_window_extent()
    long = size.height if way else size.width
    if long <= room:
        return
    longest = max(len(line) for line in whole.split("\n"))
    letters = max(8, math.floor(longest * room / long))
    text.set_text("\n".join(p for line in whole.split("\n") for p in _balanced(line, letters)))


def _balanced(line: str, letters: int) -> list[str]:
    """A line in as few parts as can be, about equally long."""
    parts = textwrap.wrap(line, letters, break_long_words=False) or [line]
    for fewer in range(max(8, len(line) // len(parts)), letters):
        if len(even := textwrap.wrap(line, fewer, break_long_words=False)) == len(parts):
            return even
    return parts


def _space_ticks(figure: Any) -> None:
    for axes in figure.axes:
        for axis, way in ((axes.xaxis, 0), (axes.yaxis, 1)):
            if axes.get_visible() and axis.get_visible():
                _space(axis, way)


def _space(axis: Any, way: int) -> None:
    from matplotlib.ticker import FixedLocator, MaxNLocator

    texts = [text for text in axis.get_ticklabels() if text.get_text() and text.get_visible()]
    if len(texts) < 2 or not _collide(texts, way):
        return
    if not isinstance(axis.get_major_locator(), FixedLocator):
        if axis.get_scale() == "linear":
            axis.set_major_locator(MaxNLocator(4))
        return
    places = axis.get_majorticklocs()
    names = [text.get_text() for text in axis.get_ticklabels()]
    if all(_is_number(name) for name in names if name):
        axis.set_ticks(places, _thinned(axis.get_ticklabels(), way))
    elif way == 0:
        if texts[0].get_rotation() == 0 and not any("\n" in name for name in names):
            longest = max(len(name) for name in names)
            few = ["\n".join(_balanced(name, max(6, longest // 2))) for name in names]
            if few != names:
                axis.set_ticks(places, few)
                return
        flat = [name.replace("\n", " ") for name in names]
        turned: dict[str, Any] = {"rotation": 30, "ha": "right", "rotation_mode": "anchor"}
        axis.set_ticks(places, flat, **turned)


def _collide(texts: Sequence[Any], way: int, gap: float = 2.0) -> bool:
    ends = sorted(
        ((box.x0, box.x1) if way == 0 else (box.y0, box.y1))
        for box in (text.get_window_extent() for text in texts)
    )
    return any(after[0] < before[1] + gap for before, after in pairwise(ends))


def _thinned(texts: Sequence[Any], way: int) -> list[str]:
    """The names without those that would run into one that stays, from the last on."""
    kept: list[Any] = []
    for text in reversed(texts):
        if text.get_text() and not (kept and _collide([kept[-1], text], way, 4.0)):
            kept.append(text)
    return [text.get_text() if text in kept else "" for text in texts]


def _is_number(name: str) -> bool:
    bare = name.replace("\N{MINUS SIGN}", "-").replace(",", "").rstrip("%x ")
    try:
        float(bare)
    except ValueError:
        return False
    return True


# ---- lines ----


def _markers(figure: Any) -> None:
    """A marker per colour, where lines of several colours in a panel have the same marker and dashes."""
    alike: dict[Any, dict[str, None]] = {}
    for axes in figure.axes:
        looks: dict[Any, dict[str, None]] = {}
        for line in axes.lines:
            if _marked(line):
                looks.setdefault((line.get_marker(), line.get_linestyle()), {})[_colour(line)] = (
                    None
                )
        for look, colours in looks.items():
            if len(colours) > 1:
                alike.setdefault(look[0], {}).update(colours)
    given = {
        (marker, colour): MARKERS[(MARKERS.find(marker) + k) % len(MARKERS)]
        for marker, colours in alike.items()
        for k, colour in enumerate(colours)
    }
    legends = [axes.get_legend() for axes in figure.axes if axes.get_legend()]
    shown = [h for legend in [*legends, *figure.legends] for h in legend.legend_handles]
    for line in [line for axes in figure.axes for line in axes.lines] + shown:
        if hasattr(line, "get_marker") and _marked(line, in_legend=line in shown):
            marker = given.get((line.get_marker(), _colour(line)))
            if marker:
                line.set_marker(marker)


def _marked(line: Any, in_legend: bool = False) -> bool:
    """Whether this is a line through markers, and not points by the hundred."""
    return (
        line.get_marker() in ("o", "s", "^")
        and line.get_linestyle() != "None"
        and (in_legend or 1 < len(line.get_xdata()) <= 60)
    )


def _colour(line: Any) -> str:
    from matplotlib.colors import to_hex

    return to_hex(line.get_color())


def _draw_apart(axes: Any) -> None:
    """Shift lines that coincide with earlier ones."""
    from matplotlib.transforms import ScaledTranslation

    done: list[tuple[Any, Any, int]] = []
    for line in axes.lines:
        way = _way(axes, line)
        if way is None:
            continue
        taken = {place for other, points, place in done if _same_way(line, way, other, points)}
        place = next(k for k in range(len(done) + 1) if k not in taken)
        done.append((line, way, place))
        if place:
            by = APART_PT / 72 * ((place + 1) // 2) * (1 if place % 2 else -1)
            shift = ScaledTranslation(by, by, axes.figure.dpi_scale_trans)
            line.set_transform(axes.transData + shift)


def _way(axes: Any, line: Any) -> Any:
    """A line's course in pixels; None for lines across a panel, points and pale lines of single runs."""
    from matplotlib.cbook import STEP_LOOKUP_MAP

    pale = line.get_alpha() is not None and line.get_alpha() < 0.7
    if line.get_transform() != axes.transData or line.get_linestyle() == "None" or pale:
        return None
    try:
        x, y = (np.asarray(v, float) for v in line.get_data(orig=False))
    except (TypeError, ValueError):
        return None
    if len(x) < 2:
        return None
    x, y = STEP_LOOKUP_MAP[line.get_drawstyle()](x, y)
    with np.errstate(all="ignore"):
        points = axes.transData.transform(np.column_stack([x, y]))
    points = points[np.isfinite(points).all(axis=1)]
    return points if len(points) > 1 else None


def _same_way(line: Any, way: Any, other: Any, points: Any) -> bool:
    """Whether a line lies on another over `SAME_SHARE` of its points."""
    if _colour(line) == _colour(other) and line.get_linestyle() == other.get_linestyle():
        return False
    few = way[:: max(1, len(way) // 200)]
    near = np.zeros(len(few), dtype=bool)
    for k in range(0, len(points) - 1, 500):
        start, end = points[k : k + 500], points[k + 1 : k + 501]
        start = start[: len(end)]
        along = end - start
        long = np.maximum((along**2).sum(axis=1), 1e-9)
        share = (((few[:, None] - start) * along).sum(axis=2) / long).clip(0, 1)
        off = few[:, None] - (start + share[..., None] * along)
        near |= ((off**2).sum(axis=2) < SAME_PX**2).any(axis=1)
    return bool(near.mean() > SAME_SHARE)


# ---- panels and legends ----


def _drop_empty(figure: Any) -> None:
    for axes in list(figure.axes):
        if _is_empty(axes):
            axes.set_axis_off()


def _is_empty(axes: Any) -> bool:
    drawn = [*axes.lines, *axes.collections, *axes.patches, *axes.images, *axes.tables, *axes.texts]
    return axes.axison and not drawn and axes.get_legend() is None


def _place_legends(figure: Any) -> None:
    """Legends that cover data go below; those of the whole figure get as many columns as fit."""
    for legend in list(figure.legends):
        texts = [text.get_text() for text in legend.get_texts()]
        handles, title = list(legend.legend_handles), legend.get_title().get_text()
        legend.remove()
        _below_all(figure, dict(zip(texts, handles, strict=True)), title)
    with_legend = [axes for axes in figure.axes if axes.get_legend() is not None and axes.axison]
    if not any(_is_in_the_way(figure, axes) for axes in with_legend):
        return
    shared = _in_one(with_legend)
    if shared is not None and not figure.legends:
        title = with_legend[0].get_legend().get_title().get_text()
        for axes in with_legend:
            axes.get_legend().remove()
        _below_all(figure, shared, title)
        return
    rows: dict[int, float] = {}
    for axes in with_legend:
        if len(with_legend) > 1 or _is_in_the_way(figure, axes):
            row = round(axes.get_window_extent().y0 / 10)
            rows[row] = max(rows.get(row, 0.0), _below_one(figure, axes))
    width, height = figure.get_size_inches()
    figure.set_size_inches(width, height + sum(rows.values()))


def _entries(axes: Any) -> dict[str, Any]:
    legend = axes.get_legend()
    return dict(
        zip([text.get_text() for text in legend.get_texts()], legend.legend_handles, strict=True)
    )


def _in_one(panels: Sequence[Any]) -> dict[str, Any] | None:
    """The entries of all panels, if the same name looks the same everywhere and no other name so."""
    found: dict[str, Any] = {}
    titles = {axes.get_legend().get_title().get_text() for axes in panels}
    for axes in panels:
        for name, handle in _entries(axes).items():
            found.setdefault(name, handle)
            if _look(found[name]) != _look(handle):
                return None
    looks = [_look(handle) for handle in found.values()]
    return found if len(set(looks)) == len(looks) and len(titles) == 1 else None


def _look(handle: Any) -> tuple[Any, ...]:
    from matplotlib.colors import to_hex

    def told(name: str) -> Any:
        return getattr(handle, name)() if hasattr(handle, name) else None

    colour = told("get_color") if hasattr(handle, "get_color") else told("get_facecolor")
    try:
        colour = to_hex(colour, keep_alpha=True)
    except (TypeError, ValueError):
        colour = str(colour)
    return (
        type(handle).__name__,
        colour,
        told("get_marker"),
        told("get_linestyle"),
        told("get_hatch"),
    )


def _below_all(figure: Any, entries: Mapping[str, Any], title: str) -> None:
    """One legend below all panels; the picture grows by its height."""
    for columns in range(min(len(entries), 6), 0, -1):
        legend = figure.legend(
            list(entries.values()), list(entries), loc="outside lower center", ncols=columns,
            fontsize=LEAST_PT, title=title or None, title_fontsize=LEAST_PT,
        )  # fmt: skip
        box = legend.get_window_extent(figure.canvas.get_renderer())
        if columns == 1 or box.width <= 0.98 * figure.bbox.width:
            break
        legend.remove()
    width, height = figure.get_size_inches()
    figure.set_size_inches(width, height + box.height / DPI)


def _below_one(figure: Any, axes: Any) -> float:
    """A legend below its panel and the names of its axis; its height in inches."""
    from matplotlib.transforms import ScaledTranslation

    entries, title = _entries(axes), axes.get_legend().get_title().get_text()
    panel = axes.get_window_extent()
    lowest = axes.xaxis.get_tightbbox(figure.canvas.get_renderer())
    down = (panel.y0 - lowest.y0 if lowest else 0) + 4
    place = axes.transAxes + ScaledTranslation(0, -down / DPI, figure.dpi_scale_trans)
    room = panel.width + 60
    letters = int(room / (0.6 * LEAST_PT / 72 * DPI)) - 6  # beside the handle
    entries = {"\n".join(_balanced(name, max(12, letters))): one for name, one in entries.items()}
    for columns in range(min(len(entries), 4), 0, -1):
        legend = axes.legend(
            list(entries.values()), list(entries), loc="upper center", bbox_to_anchor=(0.5, 0),
            bbox_transform=place, ncols=columns, fontsize=LEAST_PT, title=title or None,
            title_fontsize=LEAST_PT, borderaxespad=0.2, columnspacing=1.0, handlelength=1.6,
        )  # fmt: skip
        box = legend.get_window_extent(figure.canvas.get_renderer())
        if box.width <= room:
            break
    return float(box.height / DPI)


def _is_in_the_way(figure: Any, axes: Any) -> bool:
    """Whether a panel's legend covers data, or reaches out of a panel into what is beside it."""
    legend = axes.get_legend()
    box, panel = legend.get_window_extent(figure.canvas.get_renderer()), axes.get_window_extent()
    inside = box.x0 < panel.x1 and box.x1 > panel.x0
    out = box.x0 < panel.x0 - 2 or box.x1 > panel.x1 + 2
    return (inside and out) or _covers(figure, legend)


def _covers(figure: Any, legend: Any) -> bool:
    """Whether anything that is drawn lies under a legend."""
    box = legend.get_window_extent(figure.canvas.get_renderer()).padded(5)
    for axes in figure.axes:
        for line in axes.lines:
            if _crosses(line.get_transform().transform_path(line.get_path()), box, line):
                return True
        for patch in axes.patches:
            if patch.get_window_extent().overlaps(box):
                return True
        for many in axes.collections:
            offsets = many.get_offset_transform().transform(many.get_offsets())
            if len(many.get_paths()) == 1 and len(offsets) > 1:
                if _inside(offsets, box):
                    return True
            elif any(
                path.transformed(many.get_transform()).intersects_bbox(box)
                for path in many.get_paths()
                if len(path.vertices)
            ):
                return True
        if any(text.get_window_extent().overlaps(box) for text in axes.texts if text.get_text()):
            return True
    return False


def _crosses(path: Any, box: Any, line: Any) -> bool:
    if not len(path.vertices):
        return False
    if line.get_linestyle() == "None":
        return _inside(path.vertices, box)
    return bool(path.intersects_bbox(box, filled=False))


def _inside(points: Any, box: Any) -> bool:
    x, y = np.asarray(points, float).T[:2]
    return bool(((x > box.x0) & (x < box.x1) & (y > box.y0) & (y < box.y1)).any())
