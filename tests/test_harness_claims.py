"""Verdicts by rule, the fingerprint of code, and the page."""

from __future__ import annotations

import ast
import math
from dataclasses import replace
from pathlib import Path

import pandas
import pytest

from agents.statistics import Interval
from experiments import list as list_command
from experiments import report
from experiments.harness import fingerprint as prints
from experiments.harness import page
from experiments.harness.catalogue import Entry, entries, load
from experiments.harness.claims import (
    Claim,
    Verdict,
    about,
    asked,
    at_least,
    at_most,
    best_of,
    between,
    every,
    exact,
    exactly,
    gain,
    led_by,
    less,
    more,
    settings,
)
from experiments.harness.fingerprint import ROOT
from experiments.harness.headlines import Headline
from experiments.harness.maps import maps
from experiments.harness.page import claims_table, html, interval, markdown
from experiments.harness.parameters import Parameters
from experiments.harness.results import (
    RECORD,
    Result,
    cell,
    read_result,
    rows_beside_page,
    table_file,
    write_result,
)
from experiments.output import new_figure

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
        (Interval(90, -1, 181), Verdict.NOT),
        (Interval(NAN, NAN, NAN), Verdict.UNMEASURED),
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


def test_a_range_is_met_inside_only():
    def verdict(*ours):
        return between("s", 30, 60, Interval(*ours), nothing=0).verdict

    assert verdict(30, 25, 35) == verdict(60, 55, 65) == Verdict.REPRODUCED
    assert verdict(61, 55, 65) == verdict(20, 15, 25) == Verdict.DIRECTION
    assert verdict(40, -5, 85) == verdict(-40, -45, -35) == Verdict.NOT
    assert between("s", 30, 60, exact(40), nothing=0, unit="%").paper == "30 to 60 %"
    with pytest.raises(ValueError, match="holds no effect"):
        between("s", -1, 60, exact(40), nothing=0)
    with pytest.raises(ValueError, match="no range"):
        between("s", 60, 30, exact(40), nothing=0)


def test_a_level_is_met_or_not():
    assert at_least("s", 99.5, Interval(99.6, 99, 100), nothing=None).verdict == Verdict.REPRODUCED
    assert at_least("s", 99.5, exact(50), nothing=None).verdict == Verdict.NOT
    assert about("s", 15, exact(14), nothing=None).verdict == Verdict.REPRODUCED
    assert about("s", 15, exact(9), nothing=None).verdict == Verdict.NOT


@pytest.mark.parametrize(
    "ours, above, below",
    [
        (Interval(24.56, -58.74, 107.8), Verdict.NOT, Verdict.NOT),
        (Interval(24.56, 0.1, 49.0), Verdict.REPRODUCED, Verdict.NOT),
        (Interval(-24.56, -49.0, -0.1), Verdict.NOT, Verdict.REPRODUCED),
        (Interval(0.0, 0.0, 0.0), Verdict.NOT, Verdict.NOT),
        (Interval(1.0, NAN, NAN), Verdict.REPRODUCED, Verdict.NOT),
        (Interval(NAN, NAN, NAN), Verdict.UNMEASURED, Verdict.UNMEASURED),
    ],
)
def test_more_and_less_without_a_number_ask_for_the_whole_interval(ours, above, below):
    assert more("s", 0, ours).verdict == above
    assert less("s", 0, ours).verdict == below


def test_more_and_less_say_what_they_ask_for():
    good = more("s", 0, exact(3), unit="% shorter", reason="because")
    assert (good.paper, good.reason) == ("more than 0 % shorter", "")
    bad = less("s", 1, exact(3), unit="times", reason="because")
    assert (bad.paper, bad.reason) == ("less than 1 times", "because")
    assert less("s", 1, exact(3), paper="faster").paper == "faster"


def test_the_number_of_a_worked_example_is_met_exactly():
    assert exactly("s", 17, exact(16), reason="because").verdict == Verdict.NOT
    assert exactly("s", 17, exact(17)).verdict == Verdict.REPRODUCED
    assert exactly("s", 7 / 6, exact(1 / 6 * 7)).verdict == Verdict.REPRODUCED


# Rank 1 of five, and 1 % of a width: levels that could have been missed to either side.
LEVELS_OF_ONE = {("fig14_multi_model_ablation", "at_most"), ("fig08_kv_model", "at_most")}


def test_no_claim_goes_round_no_effect():
    """At least 0 % more or at most 1 times, as a level: that is "more" or "less" without its interval."""
    found = []
    for entry in entries():
        for node in ast.walk(ast.parse(entry.path.read_text(encoding="utf-8"))):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
                continue
            if node.func.id not in ("at_least", "at_most") or len(node.args) < 2:
                continue
            nothing = {k.arg: ast.unparse(k.value) for k in node.keywords}.get("nothing")
            bare = nothing == "None" and ast.unparse(node.args[1]) in ("0", "0.0", "1", "1.0")
            if bare and (entry.path.stem, node.func.id) not in LEVELS_OF_ONE:
                found.append(f"{entry.path.name}:{node.lineno}")
    assert not found


def test_a_reason_is_for_what_did_not_reproduce():
    good = about("s", 2.0, exact(2.0), nothing=1.0, reason="because", note="by the way")
    assert (good.reason, good.note) == ("", "by the way")
    assert about("s", 2.0, exact(9.0), nothing=1.0, reason="because").reason == "because"


def test_a_claim_of_nothing_is_refused():
    with pytest.raises(ValueError, match="no effect at all"):
        about("s", 1.0, exact(1.0), nothing=1.0)


def test_claims_survive_their_file():
    part = about("s", 90, Interval(67, NAN, NAN), nothing=0, unit="%", reason="because")
    claim = every("all", [part, part], how="by force")
    back = Claim.from_dict(claim.as_dict())
    assert (back.sentence, back.verdict, back.reason) == ("all", Verdict.DIRECTION, "because")
    assert [p.sentence for p in back.parts] == ["s", "s"]
    assert back.how == "by force"
    assert math.isnan(back.ours.low)


def test_an_improvement_beyond_the_papers_is_no_failure():
    beyond, near, other = exact(9.0), exact(1.8), exact(1.2)
    verdicts = [gain("s", 2.0, ours, nothing=1.0).verdict for ours in (beyond, near, other)]
    assert verdicts == [Verdict.REPRODUCED, Verdict.REPRODUCED, Verdict.DIRECTION]
    assert gain("less", 0.5, exact(0.1), nothing=1.0).verdict is Verdict.REPRODUCED
    assert gain("s", 2.0, exact(math.inf), nothing=1.0).verdict is Verdict.DIRECTION
    assert gain("less", 0.5, exact(1.1), nothing=1.0).verdict is Verdict.NOT


def test_a_sentence_is_as_good_as_its_parts_by_its_rule():
    good = about("small", 2.0, exact(2.0), nothing=1.0, unit="x", how="by batching")
    middling = about("large", 2.0, exact(1.2), nothing=1.0, unit="x", reason="few requests")
    unknown = about("mixed", 2.0, Interval(NAN, NAN, NAN), nothing=1.0)
    worst, best = (rule("It doubles", [good, middling, unknown]) for rule in (every, best_of))
    assert (worst.verdict, worst.ours.mean, worst.reason) == (
        Verdict.DIRECTION, 1.2, "few requests"
    )  # fmt: skip
    assert (best.verdict, best.unit, best.how) == (Verdict.REPRODUCED, "x (small)", "by batching")
    assert worst.note == best.note == "2 of 3 parts measured"
    assert led_by("It doubles", [middling, good]).verdict is Verdict.DIRECTION
    assert led_by("It doubles", [unknown, good]).verdict is Verdict.UNMEASURED
    assert every("It doubles", [unknown]).verdict is Verdict.UNMEASURED
    assert worst.parts == (good, middling, unknown)
    with pytest.raises(ValueError, match="no parts"):
        every("It doubles", [])


def test_a_sentence_counts_in_the_best_setting_that_is_allowed():
    def tried(name, mean):
        return about(name, 2.0, exact(mean), nothing=1.0, unit="x")

    ours = asked(tried("ours", 2.0))
    first, near, good = tried("text", 4.0), tried("released", 2.6), tried("section 6", 2.1)
    judged = settings("It doubles", [first, ours, near])
    assert (judged.verdict, judged.unit) == (Verdict.DIRECTION, "x (released)")
    assert settings("It doubles", [tried("text", 2.2), good]).ours.mean == 2.2
    assert settings("It doubles", [first, good, near]).ours.mean == 2.1
    assert judged.mapped
    assert Claim.from_dict(judged.as_dict()) == judged
    assert not every("all", [judged, first]).mapped
    with pytest.raises(ValueError, match="all settings are ours"):
        settings("It doubles", [ours])


def test_where_a_claim_reproduces_is_kept():
    assert about("s", 2.0, exact(9), nothing=1.0).good == (1.5, 2.5)
    assert gain("s", 2.0, exact(9), nothing=1.0).good == (1.5, None)
    assert gain("s", 0.5, exact(9), nothing=1.0).good == (None, 0.625)
    assert at_most("s", 0.5, exact(9), nothing=None).good == (None, 0.5)
    assert more("s", 3.0, exact(9)).good == (3.0, None)


def test_a_map_has_a_panel_per_claim_with_settings():
    def tried(name, *ours):
        return about(name, 2.0, Interval(*ours), nothing=1.0, unit="x")

    parts = [tried("text", 4, 3, 5), tried("far", 900, 800, 990), tried("none", NAN, NAN, NAN)]
    claim = settings("It doubles", [*parts, asked(tried("more memory", 2, 2, 2))])
    figure = maps([("Twice", claim), ("Plain", parts[0]), ("Alone", settings("s", parts[:1]))])
    (axes,) = figure.axes
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert names == ["text", "far", "none", "more memory (ours)"]
    assert axes.get_xlim()[1] < 800
    assert "not measured" in axes.texts[-2].get_text()
    assert maps([("Plain", parts[0])]) is None


def test_questions_of_ours_count_nowhere(tmp_path):
    shown = result(tmp_path)
    shown = replace(shown, claims=(*shown.claims, asked(replace(shown.claims[1], sentence="Why?"))))
    text = markdown("chiron", [(ENTRY, shown)], [], {}, "paper")
    assert "of 2 sentences." in text
    assert "| Why? |" in text.partition("## Questions of ours")[2]
    assert "| Why? |" not in text.partition("## Questions of ours")[0]
    assert [row["counts"] for row in claims_table([(ENTRY, shown)])] == [True, True, False]
    assert not every("all", [asked(shown.claims[0])]).question
    deep = replace(shown, claims=(every("all", [every("untuned", [shown.claims[0]] * 2)]),))
    assert [row["part"] for row in claims_table([(ENTRY, deep)])] == [
        "",
        "untuned",
        "untuned > It doubles | at least",
        "untuned > It doubles | at least",
    ]


def test_main_claims_stand_first_and_are_judged_by_their_figures(tmp_path, monkeypatch):
    main = (
        Headline("abstract", "Twice as much", "chiron-fig03", "It doubles | at least"),
        Headline("conclusion", "Thrice", "chiron-fig03", "It triples", why="At most 1.1 x at 8."),
        Headline("abstract", "Later", "chiron-fig99", "It flies"),
    )
    monkeypatch.setattr(page, "headlines", lambda paper: main)
    text = markdown("chiron", [(ENTRY, result(tmp_path))], [], {}, "paper")
    table = text.partition("## Main claims")[2].partition("## All sentences")[0]
    assert (
        "1 reproduced, 0 same direction, another size, 1 not reproduced, 1 not run, of 3 main"
        in table
    )
    assert "At most 1.1 x at 8." in table
    assert "`chiron-fig99` has not been run" in table
    anchor = table.partition("](#")[2].partition(")")[0]
    assert f'id="{anchor}"' in html(text, "Chiron")
    monkeypatch.setattr(page, "headlines", lambda paper: (replace(main[0], sentence="It flies"),))
    with pytest.raises(ValueError, match="no claim 'It flies'"):
        markdown("chiron", [(ENTRY, result(tmp_path))], [], {}, "paper")
    old = markdown(
        "chiron", [(ENTRY, result(tmp_path))], [], {ENTRY: "made by other code"}, "paper"
    )
    assert "`chiron-fig03` is older than this claim" in old
    assert page.MAPS not in text
    mapped = settings(main[0].sentence, [replace(one, sentence=name) for name, one in zip(
        ("text", "released"), result(tmp_path).claims * 2, strict=False)])  # fmt: skip
    with_settings = replace(result(tmp_path), claims=(mapped,))
    monkeypatch.setattr(page, "headlines", lambda paper: main[:1])
    text = markdown("chiron", [(ENTRY, with_settings)], [], {}, "paper")
    place = text.partition("([map](#")[2].partition(")")[0]
    assert f'id="{place}"' in html(text, "Chiron")
    assert f"chiron/{page.MAPS}" in text


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

    def now(function: str | None = None) -> str:
        prints._source.cache_clear()
        prints._data.cache_clear()
        return prints.fingerprint("experiments.one", function)

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


def test_fingerprint_of_a_function_knows_what_it_reaches(project):
    root, now = project
    one = (
        "from experiments.shared import helper, other\n"
        "from llmscale_env.two import f\n"
        "LIMIT = 3\n"
        "COLOUR = 'red'\n"
        "def run(case):\n"
        "    return step(case)\n"
        "def step(case):\n"
        "    return helper(LIMIT)\n"
        "def plot():\n"
        "    return f(COLOUR), other\n"
    )
    shared = "SIZE = 1\ndef helper(x):\n    return x * SIZE\ndef other():\n    return 2\n"

    def after(file: str, text: str) -> str:
        (root / "experiments" / file).write_text(text)
        return now("run")

    (root / "experiments/shared.py").write_text(shared)
    start = after("one.py", one)
    whole = now()
    assert after("one.py", one.replace("'red'", "'blue'")) == start
    assert now() != whole, "the whole module is another"
    assert after("one.py", one.replace("f(COLOUR), other", "0")) == start
    assert after("one.py", one.replace("step(case)", "step(1 + case)", 1)) != start
    assert after("one.py", one.replace("LIMIT = 3", "LIMIT = 4")) != start
    assert after("one.py", one + "LIMIT += 1\n") != start
    assert after("one.py", one.replace("LIMIT = 3\n", 'LIMIT = 3\n"""How many."""\n')) == start
    assert after("one.py", one) == start
    assert after("shared.py", shared.replace("return 2", "return 3")) == start
    assert after("shared.py", shared.replace("SIZE = 1", "SIZE = 2")) != start
    after("shared.py", shared)
    (root / "llmscale_env/two.py").write_text("def f():\n    return 9\n")
    assert now("run") == start, "only plot uses it"
    (root / "llmscale_env/data.yaml").write_text("a: 2\n")
    assert now("run") != start
    with pytest.raises(LookupError, match=r"no walk in experiments\.one"):
        now("walk")


@pytest.mark.parametrize("function", [None, "run"])
def test_fingerprint_of_the_real_code_reaches_the_engine(function, monkeypatch):
    seen = set()
    digest = prints._source

    def noted(name):
        seen.add(name)
        return digest(name)

    monkeypatch.setattr(prints, "_source", noted)
    prints.fingerprint("experiments.chiron.fig09_interactive_load", function)
    assert "llmscale_env.sim.fast.serving.boundary" in seen
    assert "llmscale_env.cluster.iteration_time" in seen
    assert "baselines.chiron" in seen
    assert not any(name.startswith("agents.learning.learner") for name in seen)


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
    "chiron-fig03",
    "chiron",
    "experiments.chiron.fig03_batch_size",
    ROOT / "a.py",
    "A title.",
    "Text.",
)


def test_page_shows_figure_numbers_verdict_and_reason(tmp_path):
    text = markdown("chiron", [(ENTRY, result(tmp_path))], [ENTRY], {}, "paper")
    assert "1 reproduced, 0 same direction, another size, 1 not reproduced, of 2 sentences." in text
    assert "![A title.](chiron/chiron-fig03.png)" in text
    assert "✓ reproduced, ~ same direction, another size, ✗ not reproduced" in text
    rows = [line for line in text.splitlines() if "| 2 x | 1.9 [1.8, 2] x |" in line]
    assert [line[:4] for line in rows] == ["| ✓ "]
    assert any(line.startswith("| ✗ ") and "It does not." in line for line in text.splitlines())
    assert "## Not run" in text
    page = html(text, "Chiron")
    assert page.count("<table>") == 2  # of main claims, and of the figure
    assert '<img alt="A title." src="chiron/chiron-fig03.png"' in page


def test_page_names_tables_where_there_are_several(tmp_path):
    for key in ("one", "two"):
        (tmp_path / table_file("chiron-fig03", key)).write_text("a,b\n1,2\n")
    one = replace(result(tmp_path), tables=("chiron-fig03-one.csv",))
    both = replace(one, tables=("chiron-fig03-one.csv", "chiron-fig03-two.csv"))
    text = markdown("chiron", [(ENTRY, both)], [], {}, "paper")
    assert "*one*\n\n| a | b |\n" in text
    assert "*two*\n\n| a | b |\n" in text
    assert "*one*" not in markdown("chiron", [(ENTRY, one)], [], {}, "paper")


def test_page_has_no_claims_where_none_are_made(tmp_path):
    shown = replace(result(tmp_path), claims=())
    text = markdown("chiron", [(ENTRY, shown)], [], {}, "paper").partition("## Figure 3")[2]
    assert "| claim |" not in text


def test_page_says_what_is_wrong_with_a_result(tmp_path):
    results = [(ENTRY, result(tmp_path))]
    text = markdown("chiron", results, [], {ENTRY: "made by other code"}, "paper")
    assert "**This result was made by other code.**" in text


def test_report_refuses_results_of_other_parameters(tmp_path, capsys):
    entry = next(e for e in entries() if e.name == "chiron-fig03")
    experiment = load(entry)
    values = experiment.parameters["paper"].model_dump(mode="json")

    def leave(values):
        made = result(tmp_path / "results" / entry.name / "paper", prints.fingerprint(entry.module))
        parameters = {name: (value, "source") for name, value in values.items()}
        made = replace(made, parameters=parameters)
        write_result(made, pandas.DataFrame({"x": [1]}), {made.pictures[0]: new_figure(1, 1)})

    words = [f"results={tmp_path / 'results'}", f"out={tmp_path / 'out'}", "paper=chiron"]
    leave({**values, "seeds": 99})
    assert report.main(words) == 1
    assert "other parameters than those of scale paper" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert report.main([*words, "stale=true"]) == 0
    assert "**This result was made with other" in (tmp_path / "out/chiron.md").read_text()
    leave(values)
    assert report.main(words) == 0


def test_report_leaves_out_series_over_time(tmp_path, monkeypatch):
    entry = next(e for e in entries() if e.name == "blitzscale-fig01")
    monkeypatch.setattr(report, "load", lambda entry: replace(load(entry), excerpt=None))
    values = load(entry).parameters["paper"].model_dump(mode="json")
    made = replace(
        result(tmp_path / "results" / entry.name / "paper", prints.fingerprint(entry.module)),
        name=entry.name,
        figure="Figure 1",
        parameters={name: (value, "source") for name, value in values.items()},
    )
    rows = [{"seed": 1, "kind": "second", "second": t, "rise": 0.1} for t in range(3)]
    rows += [{"seed": 1, "kind": "poisson", "rise": 0.30000000000000004}]
    write_result(made, pandas.DataFrame(rows), {made.pictures[0]: new_figure(1, 1)})
    words = [f"results={tmp_path / 'results'}", f"out={tmp_path / 'out'}", "paper=blitzscale"]
    assert report.main(words) == 0
    kept = (tmp_path / "out/blitzscale/blitzscale-fig01.csv").read_text()
    assert kept == "seed,kind,rise\n1,poisson,0.3\n"
    page = (tmp_path / "out/blitzscale.md").read_text()
    assert "[rows without series and episodes](blitzscale/blitzscale-fig01.csv)" in page
    assert (made.folder / "rows.csv").read_text().count("second") == 1 + 3
    write_result(made, pandas.DataFrame(rows[:3]), {made.pictures[0]: new_figure(1, 1)})
    assert report.main(words) == 0
    assert not (tmp_path / "out/blitzscale/blitzscale-fig01.csv").exists()
    assert (
        "rows, an episode each, stay in `results/`." in (tmp_path / "out/blitzscale.md").read_text()
    )


def test_rows_without_series_lie_beside_the_page(tmp_path):
    one = tmp_path / "one.csv"
    one.write_text('kind,text,empty\na,"x, y",\nb,z,\n')
    assert rows_beside_page(one, (), Parameters()) == 'kind,text\na,"x, y"\nb,z\n'
    assert rows_beside_page(one, ("b",), Parameters()) == 'kind,text\na,"x, y"\n'
    assert rows_beside_page(one, ("a", "b"), Parameters()) is None
    one.write_text(f"file,x\n{prints.ROOT}/agents/model.safetensors,1\n")
    assert rows_beside_page(one, (), Parameters()) == "file,x\nagents/model.safetensors,1\n"
    one.write_text("what,x\na,1\n")
    with pytest.raises(ValueError, match="no column kind, which b should be in"):
        rows_beside_page(one, ("b",), Parameters())


def test_an_experiment_names_its_series_in_a_tuple(monkeypatch):
    from experiments.chiron import fig03_batch_size

    assert load(ENTRY).series == ()
    monkeypatch.setattr(fig03_batch_size, "SERIES", "second", raising=False)
    with pytest.raises(TypeError, match="SERIES = 'second': must be a tuple of names"):
        load(ENTRY)


def test_interval_says_only_what_there_is():
    assert interval(Interval(0.5, NAN, NAN)) == "0.5"
    assert interval(exact(2.0)) == "2"
    assert interval(Interval(NAN, NAN, NAN)) == "not measured"
    assert interval(Interval(0.12345, 0.1, 0.2)) == "0.123 [0.1, 0.2]"
    assert interval(Interval(-533.46, -1001.4, 66.34)) == "-533 [-1,001, 66.3]"
    assert interval(Interval(0.962, 0.855, math.inf)) == "0.962 [0.855, inf]"


def test_cells_of_tables():
    assert cell(Interval(NAN, NAN, NAN)) == cell(NAN) == "-"
    assert (cell(12345.6), cell(0.123456), cell("x")) == ("12,346", "0.1235", "x")


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
