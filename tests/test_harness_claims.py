"""Verdicts by rule, the fingerprint of code, and the page."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from agents.statistics import Interval
from experiments import list as list_command
from experiments import report
from experiments.harness import fingerprint as prints
from experiments.harness.catalogue import Entry
from experiments.harness.claims import Claim, Verdict, about, at_least, at_most, exact
from experiments.harness.page import html, interval, markdown
from experiments.harness.results import RECORD, Result, read_result

NAN = math.nan


@pytest.mark.parametrize(
    "ours, verdict",
    [
        (Interval(90, 80, 100), Verdict.REPRODUCED),
        (Interval(112, 100, 120), Verdict.REPRODUCED),
        (Interval(67, 60, 70), Verdict.DIRECTION),
        (Interval(300, 200, 400), Verdict.DIRECTION),
        (Interval(20, 1, 40), Verdict.DIRECTION),
        (Interval(20, -1, 40), Verdict.NOT),
        (Interval(-90, -99, -80), Verdict.NOT),
        (Interval(90, NAN, NAN), Verdict.REPRODUCED),
        (Interval(20, NAN, NAN), Verdict.DIRECTION),
        (Interval(NAN, NAN, NAN), Verdict.NOT),
    ],
)
def test_about(ours, verdict):
    assert about("s", 90, ours, nothing=0).verdict == verdict


def test_about_with_an_effect_downwards():
    assert about("s", 0.3, Interval(0.33, 0.2, 0.4), nothing=1).verdict == Verdict.REPRODUCED
    assert about("s", 0.3, Interval(0.8, 0.7, 0.9), nothing=1).verdict == Verdict.DIRECTION
    assert about("s", 0.3, Interval(0.9, 0.7, 1.1), nothing=1).verdict == Verdict.NOT


def test_promises_hold_on_their_side_only():
    assert at_least("s", 0.99, exact(0.995), nothing=0).verdict == Verdict.REPRODUCED
    assert at_least("s", 0.99, exact(0.9), nothing=0).verdict == Verdict.DIRECTION
    assert at_most("s", 0.5, exact(0.1), nothing=1).verdict == Verdict.REPRODUCED
    assert at_most("s", 0.5, exact(0.9), nothing=1).verdict == Verdict.DIRECTION
    assert at_most("s", 0.5, exact(1.1), nothing=1).verdict == Verdict.NOT
    assert at_most("s", 0.5, exact(1.1), nothing=1, unit="x").paper == "at most 0.5 x"


def test_a_claim_of_nothing_is_refused():
    with pytest.raises(ValueError, match="no effect at all"):
        about("s", 1.0, exact(1.0), nothing=1.0)


def test_claims_survive_their_file():
    claim = about("s", 90, Interval(67, NAN, NAN), nothing=0, unit="%", reason="because")
    back = Claim.from_dict(claim.as_dict())
    assert (back.sentence, back.verdict, back.reason) == ("s", Verdict.DIRECTION, "because")
    assert math.isnan(back.ours.low)


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.setattr(prints, "ROOT", tmp_path)
    for folder in ("experiments", "llmscale_env", "baselines"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "__init__.py").write_text("")
    (tmp_path / "experiments/one.py").write_text("from llmscale_env.two import f\nx = 1\n")
    (tmp_path / "llmscale_env/two.py").write_text('"""Doc."""\n\ndef f():\n    return 1\n')
    (tmp_path / "llmscale_env/three.py").write_text("y = 1\n")
    (tmp_path / "llmscale_env/data.yaml").write_text("a: 1\n")

    def now() -> str:
        prints._source.cache_clear()
        prints._data.cache_clear()
        return prints.fingerprint("experiments.one")

    yield tmp_path, now
    prints._source.cache_clear()
    prints._data.cache_clear()


def test_fingerprint_knows_what_matters(project):
    root, now = project
    start = now()
    (root / "llmscale_env/three.py").write_text("y = 2\n")
    assert now() == start, "nobody imports it"
    (root / "llmscale_env/two.py").write_text('"""Other."""\n# comment\ndef f():\n\n    return 1\n')
    assert now() == start, "the code is the same"
    (root / "llmscale_env/two.py").write_text("def f():\n    return 2\n")
    imported = now()
    assert imported != start
    (root / "llmscale_env/data.yaml").write_text("a: 2\n")
    data = now()
    assert data != imported
    (root / "experiments/beside.yaml").write_text("a: 1\n")
    assert now() == data, "nobody names it"
    (root / "experiments/one.py").write_text(
        "from llmscale_env.two import f\nx = open('beside.yaml')\n"
    )
    named = now()
    (root / "experiments/beside.yaml").write_text("a: 2\n")
    assert now() != named


def test_fingerprint_of_the_real_code_reaches_the_engine():
    module = "experiments.chiron.fig03_batch_size"
    prints._source.cache_clear()
    found = {module}
    todo = [module]
    while todo:
        for name in prints._source(todo.pop())[1]:
            if name not in found:
                found.add(name)
                todo.append(name)
    assert "llmscale_env.sim.fast.boundary" in found
    assert "llmscale_env.cluster.iteration_time" in found
    assert not any(name.startswith("agents.learning") for name in found)


def result(folder: Path, code: str = "code", scale: str = "paper") -> Result:
    claims = (
        about("It doubles | at least", 2.0, Interval(1.9, 1.8, 2.0), nothing=1.0, unit="x"),
        about("It triples", 3.0, Interval(1.0, 0.9, 1.1), nothing=1.0, reason="It does not."),
    )
    return Result(
        name="chiron-fig03",
        scale=scale,
        figure="Figure 3",
        claims=claims,
        parameters={"rates": ([1, 2], "paper, 6.1")},
        command="python -m experiments.run chiron-fig03",
        runs=4,
        wall_s=2.0,
        code=code,
        versions={},
        pictures=("chiron-fig03.png",),
        folder=folder,
    )


ENTRY = Entry(
    "chiron-fig03", "chiron", "experiments.chiron.fig03_batch_size", Path(), "A title.", "Text."
)


def test_page_shows_figure_numbers_verdict_and_reason(tmp_path):
    text = markdown("chiron", [(ENTRY, result(tmp_path))], [ENTRY], "paper")
    assert "1 reproduced, 0 same direction, another size, 1 not reproduced, of 2 claims." in text
    assert "![A title.](chiron/chiron-fig03.png)" in text
    assert "| 2 x | 1.9 [1.8, 2] x | reproduced |" in text
    assert "- It triples: It does not." in text
    assert "| `rates` | 1, 2 | paper, 6.1 |" in text
    assert "## Not run" in text
    page = html(text, "Chiron")
    assert page.count("<table>") == 3
    assert '<img alt="A title." src="chiron/chiron-fig03.png"' in page
    anchor = text.partition("](#")[2].partition(")")[0]
    assert f'id="{anchor}"' in page


def test_interval_says_only_what_there_is():
    assert interval(Interval(0.5, NAN, NAN)) == "0.5"
    assert interval(exact(2.0)) == "2"
    assert interval(Interval(NAN, NAN, NAN)) == "not measured"
    assert interval(Interval(0.12345, 0.1, 0.2)) == "0.123 [0.1, 0.2]"


def test_report_without_results_is_an_error(tmp_path, capsys):
    assert report.main([f"results={tmp_path}", f"out={tmp_path / 'out'}"]) == 1
    assert "python -m experiments.run all scale=paper makes them" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_damaged_result_is_named(tmp_path, capsys):
    folder = tmp_path / "chiron-fig03" / "paper"
    folder.mkdir(parents=True)
    (folder / RECORD).write_text("{")
    with pytest.raises(ValueError, match="run the experiment again"):
        read_result(folder)
    assert report.main([f"results={tmp_path}", f"out={tmp_path / 'out'}"]) == 1
    assert "cannot be read" in capsys.readouterr().err
    assert list_command.main([f"out={tmp_path}"]) == 0
    assert "damaged" in capsys.readouterr().out


@pytest.mark.parametrize("words", [["paper=dune"], ["scale=big"], ["what=1"]])
def test_slips_of_report_are_one_line(words, capsys):
    assert report.main(words) == 2
    assert capsys.readouterr().err.count("\n") == 1
