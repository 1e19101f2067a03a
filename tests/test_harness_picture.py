"""What pictures look like on a page, and the rows that lie beside it: enough to draw them again."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Any

import pandas as pd
import pytest
from matplotlib.image import imread
from matplotlib.text import Text

from experiments import report
from experiments.harness.catalogue import entries, load
from experiments.harness.parameters import Parameters, ours
from experiments.harness.picture import (
    DPI,
    LEAST_PT,
    PAGE_IN,
    Published,
    draw_published,
    finish,
    is_whole,
    save,
)
from experiments.harness.results import of_cases, read_rows, rows_beside_page
from experiments.output import new_figure


def panels(across: int = 1, width: float = 6.0) -> tuple[Any, Any]:
    figure = new_figure(width, 3.0)
    return figure, figure.subplots(1, across, squeeze=False)[0]


def test_a_wide_figure_fits_a_page_with_letters_that_can_be_read(tmp_path):
    figure, (axes, _) = panels(2, width=15.0)
    axes.plot([0, 1], [0, 1])
    axes.set_title(
        "a title far longer than its panel is wide, which therefore is broken into lines"
    )
    axes.text(0, 1, "small", fontsize=5)
    save(figure, tmp_path / "a.png")
    assert imread(tmp_path / "a.png").shape[1] == PAGE_IN * DPI
    assert all(text.get_fontsize() >= LEAST_PT for text in figure.findobj(Text) if text.get_text())
    assert "\n" in axes.get_title()
    assert axes.title.get_window_extent().width <= axes.get_window_extent().width + 20


def test_a_legend_over_data_goes_below_and_another_stays():
    figure, (left, right) = panels(2)
    for axes in (left, right):
        axes.plot([0, 1], [1, 1], label="at the top")
        axes.set_ylim(0, 1.05)
        axes.legend(loc="lower left")
    finish(figure)
    assert left.get_legend() is not None
    assert not figure.legends
    left.legend(loc="upper left")
    finish(figure)
    assert left.get_legend() is right.get_legend() is None
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["at the top"]
    box = figure.legends[0].get_window_extent()
    assert box.y1 <= min(axes.get_tightbbox().y0 for axes in (left, right))


def test_legends_that_differ_go_below_their_panels():
    figure, two = panels(2)
    for axes, name in zip(two, ("one", "other"), strict=True):
        axes.plot([0, 1], [0, 1], label=name)  # the same look, another name
        axes.legend(loc="upper right")
    finish(figure)
    for axes, name in zip(two, ("one", "other"), strict=True):
        legend = axes.get_legend()
        assert [text.get_text() for text in legend.get_texts()] == [name]
        assert legend.get_window_extent().y1 < axes.get_window_extent().y0


def test_lines_that_coincide_are_apart_and_others_are_where_they_are():
    figure, (axes,) = panels()
    first, same, other = (
        axes.plot(range(5), y, "o-", color=colour, label=colour)[0]
        for y, colour in (([1] * 5, "C0"), ([1] * 5, "C1"), ([4, 3, 5, 2, 6], "C2"))
    )
    finish(figure)
    at = [line.get_transform().transform((2, 1)) for line in (first, same, other)]
    assert 1 < at[1][1] - at[0][1] < 5
    assert at[2] == pytest.approx(at[0])
    assert len({line.get_marker() for line in (first, same, other)}) == 3
    assert same.get_ydata() == pytest.approx([1] * 5)


def test_numbers_along_an_axis_do_not_run_into_each_other():
    figure, (axes,) = panels(width=3.0)
    axes.plot([0, 28], [0, 1])
    axes.set_xticks([0, 0.25, 0.5, 1, 28], ["0", "0.25", "0.5", "1", "28"])
    finish(figure)
    shown = [text for text in axes.get_xticklabels() if text.get_text()]
    ends = [(text.get_window_extent().x0, text.get_window_extent().x1) for text in shown]
    assert shown[-1].get_text() == "28"
    assert all(before[1] < after[0] for before, after in pairwise(ends))


def test_a_panel_without_data_is_left_out():
    figure, (left, right) = panels(2)
    left.plot([0, 1], [0, 1])
    assert not is_whole(figure)
    finish(figure)
    assert left.axison
    assert not right.axison


def test_numbers_of_the_paper_are_drawn_and_named():
    figure, (left, right) = panels(2)
    for axes in (left, right):
        axes.plot([0, 1], [0, 1], label="ours")
    left.legend()
    points = Published("Figure 3", ((0.2, 0.8), (0.5, 0.9)), panels=(0,))
    level = Published("Section 5", ((0, 0.5),), "level", panels=(1,), label="half")
    draw_published(figure, (points, level))
    assert left.lines[-1].get_xydata().tolist() == [[0.2, 0.8], [0.5, 0.9]]
    named = [[t.get_text() for t in axes.get_legend().get_texts()] for axes in (left, right)]
    assert named == [["ours", "the paper (Figure 3)"], ["ours", "half"]]
    with pytest.raises(IndexError):
        draw_published(figure, (Published("Figure 3", ((0, 0),), panels=(2,)),))


class Few(Parameters):
    rate_per_s: Annotated[float, ours("for a test")] = 2.5
    shares: Annotated[tuple[float, ...], ours("for a test")] = (1 / 3, 0.5)


def test_rows_beside_a_page_are_few_bytes_and_enough(tmp_path):
    rows = [
        {
            "seed": 1,
            "rate_per_s": 2.5,
            "share": 1 / 3,
            "gpus": 1234567.0,
            "x": 0.1234567,
            "kind": "a",
        },
        {"seed": 2, "rate_per_s": 2.5, "share": 0.5, "gpus": 2.0, "x": 12345.678, "kind": "b"},
    ]
    pd.DataFrame(rows).to_csv(tmp_path / "all.csv", index=False)
    text = rows_beside_page(tmp_path / "all.csv", (), Few())
    assert text == ("seed,share,gpus,x,kind\n1,0.33333,1234567,0.12346,a\n2,0.5,2,12346,b\n")
    (tmp_path / "few.csv").write_text(text)
    back = read_rows(tmp_path / "few.csv", Few())
    assert back["share"].tolist() == [1 / 3, 0.5], "as exact as the parameter"
    assert back["rate_per_s"].tolist() == [2.5, 2.5]
    first = rows_beside_page(
        tmp_path / "all.csv", (), Few(), lambda frame, _: frame[frame["seed"] == 1]
    )
    assert first == "seed,share,gpus,x,kind\n1,0.33333,1234567,0.12346,a\n"
    cases = [{"seed": 1, "share": 1 / 3}, {"seed": 2, "share": 0.5}]
    assert of_cases(back, cases)
    assert not of_cases(back, [*cases, {"seed": 1, "share": 0.7}]), "rows of a policy are missing"
    assert not of_cases(back, [{"seed": 1, "share": 1 / 3}, {"seed": 2, "share": 0.6}])


def test_pictures_are_drawn_again_from_the_rows_beside_the_pages(tmp_path, capsys):
    name = "blitzscale-fig11"
    experiment = load(next(entry for entry in entries() if entry.name == name))
    settings = experiment.parameters["paper"]
    rows = [{**case, **row} for case in experiment.cases(settings) for row in experiment.run(case)]
    pd.DataFrame(rows).to_csv(tmp_path / "all.csv", index=False)
    text = rows_beside_page(tmp_path / "all.csv", experiment.series, settings, experiment.excerpt)
    (tmp_path / "blitzscale").mkdir()
    (tmp_path / f"blitzscale/{name}.csv").write_text(text)
    assert report.main(["redraw=true", "paper=blitzscale", f"out={tmp_path}"]) == 0
    assert f"{name}: drawn" in (said := capsys.readouterr().out)
    assert "blitzscale-fig13: left as it is: no " in said
    assert (tmp_path / f"blitzscale/{name}.png").is_file()
    assert report.main(["redraw=true", "paper=qlm", f"out={tmp_path}"]) == 1
    assert report.main(["redraw=true", "scale=paper"]) == 2
