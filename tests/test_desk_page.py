"""The page of an answer: it stands alone, says what the answer says, and draws in a browser."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from experiments.desk.answer import Answer, Decision
from experiments.desk.page import (
    lowest,
    next_command,
    on_time,
    percent,
    span_text,
    winning_sentence,
    write_page,
)
from tests.answers import CLASSES, made_answer

VOID = {"meta", "br", "link", "img", "hr", "input"}


class Page(HTMLParser):
    """Text, attributes and scripts of a page; open tags must be closed in order."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(source)
        self.close()
        assert self._open == []
        self.text = " ".join(self.text.split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open[-1:] == ["script"]:
            self.scripts[-1] += data
        elif self._open[-1:] != ["style"]:
            self.text += data

    def figures(self) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """(overview, a chart for each policy)"""
        overview = re.search(r"const overview = (.*);\n", self.scripts[-1])
        charts = re.search(r"const charts = (.*);\n", self.scripts[-1])
        assert overview
        assert charts
        return json.loads(overview[1]), json.loads(charts[1])


def page_of(answer: Answer, folder: Path) -> Page:
    return Page(write_page(answer, folder / "page.html").read_text(encoding="utf-8"))


@pytest.mark.parametrize("policies", [2, 12])
@pytest.mark.parametrize("classes", [1, 3])
@pytest.mark.parametrize("usd", [None, 2.5])
def test_a_page_has_all_of_the_answer(
    policies: int, classes: int, usd: float | None, tmp_path: Path
):
    answer = made_answer(policies, classes, usd)
    page = page_of(answer, tmp_path)
    text = page.text.replace("\N{NO-BREAK SPACE}", " ")
    assert winning_sentence(answer) in text
    for line in answer.rests_on:
        assert line in text
    for ranked in answer.ranking:
        assert f"Settings: {ranked.spelled}" in text
        for decision in ranked.series.decisions:
            assert decision.reason in text
    for target in answer.question.targets:
        assert f"{target.name} on time(target {100 * target.attainment:g} %)" in text
    assert next_command(answer) in text
    assert ("$" in text) == (usd is not None)
    for title in ("Load", "Loading time", "GPU type", "Targets"):
        assert title in text
    sections = [attrs for tag, attrs in page.tags if attrs.get("class") == "policy"]
    assert [a["id"] for a in sections] == [f"policy-{k + 1}" for k in range(policies)]
    assert ["open" in attrs for attrs in sections] == [True] + [False] * (policies - 1)
    assert text.count("✓") + text.count("✗") >= policies * (classes + 12)


def test_charts_hold_the_series(tmp_path: Path):
    answer = made_answer(3, classes=3)
    overview, charts = page_of(answer, tmp_path).figures()
    shown = {
        name: (x, y)
        for trace in overview["data"]
        for name, x, y in zip(trace["text"], trace["x"], trace["y"], strict=True)
    }
    assert shown["hpa"][0] == answer.ranking[0].held_out.gpu_hours
    assert shown["hpa"][1] == pytest.approx(0.3)  # 0.3 % late where 1 % may be
    for ranked, chart in zip(answer.ranking, charts, strict=True):
        series = ranked.series
        traces = {trace["name"]: trace for trace in chart["data"]}
        names = ["arrivals", "ready", "loading", "running", "waiting", "chat", "code", "batch"]
        if series.decisions:  # a fixed fleet has none
            names.insert(3, "decision")
            mark = traces["decision"]
            assert mark["x"] == [d.time_s / 60 for d in series.decisions]
            assert mark["y"] == [d.instances for d in series.decisions]
            assert series.decisions[0].reason[:10] in html.unescape(mark["hovertext"][0])
        assert list(traces) == names
        assert traces["ready"]["y"][1:] == list(series.ready)
        assert traces["ready"]["x"][:3] == [60, 60.5, 61]
        assert traces["ready"]["x"][-1] == 120
        assert traces["waiting"]["y"][1:] == list(series.waiting)
        shares = [None if s is None else 100 * s for s in series.on_time["code"]]
        assert traces["code"]["y"][1:] == shares


def test_it_loads_nothing(tmp_path: Path):
    page = page_of(made_answer(3), tmp_path)
    for tag, attrs in page.tags:
        assert "src" not in attrs, tag
        assert (attrs.get("href") or "#").startswith("#")
    policy = [attrs["content"] for _, attrs in page.tags if "http-equiv" in attrs]
    assert policy[0] is not None
    assert policy[0].startswith("default-src 'none';")  # a browser refuses what slips through
    assert "http" not in policy[0]
    assert sum("plotly.js v" in script[:200] for script in page.scripts) == 1
    assert "http" not in page.scripts[-1]


def test_what_users_wrote_is_text(tmp_path: Path):
    evil = "</script><script>alert('x')</script><b>&amp;{{ 7 * 7 }}"
    answer = made_answer(2, trace=evil)
    ranked = answer.ranking[0]
    decisions = (Decision(time_s=3700, instances=4, reason=evil),)
    series = ranked.series.model_copy(update={"decisions": decisions})
    ranked = ranked.model_copy(update={"series": series, "policy": evil, "spelled": evil})
    update = {"ranking": (ranked, answer.ranking[1]), "winner": evil, "rests_on": (evil,)}
    page = page_of(answer.model_copy(update=update), tmp_path)
    assert len(page.scripts) == 2
    assert page.text.count(evil) >= 5
    _, charts = page.figures()
    marks = next(trace for trace in charts[0]["data"] if trace["name"] == "decision")
    assert "<script" not in marks["hovertext"][0]  # Plotly would take it for markup


def test_a_question_without_an_answer_says_so(tmp_path: Path):
    answer = made_answer(2, keeps=False)
    sentence = winning_sentence(answer)
    assert sentence.startswith("No policy reaches the target.")
    assert answer.ranking[0].needs in sentence
    assert next_command(answer) == ""
    tags = page_of(answer, tmp_path).tags
    assert "answer no" in [attrs.get("class") for _, attrs in tags]


def test_where_only_a_fixed_fleet_would_have_held_it_comes_first():
    answer = made_answer(3, keeps=False, fixed=3)
    sentence = winning_sentence(answer)
    start = "No settings tuned on the first half hold. A fixed fleet of 3 GPUs would have: "
    start += "3.00 GPU-hours, $7.50."
    assert sentence.startswith(start)
    assert next_command(answer).endswith("out=deploy policy=static instances=3")
    beyond = made_answer(3, keeps=False, fixed=61)
    assert "would have, but max_gpus is 60" in winning_sentence(beyond)
    assert next_command(beyond) == ""
    nearest = answer.ranking[0].model_copy(update={"needs": "with hindsight, more of them"})
    said = winning_sentence(beyond.model_copy(update={"ranking": (nearest,), "fixed": None}))
    assert said.endswith(". With hindsight, more of them.")


def test_beside_a_winner_stands_what_a_fixed_fleet_would_have_taken():
    answer = made_answer(3, fixed=7)
    assert winning_sentence(answer).endswith(
        "With hindsight, a fixed fleet of 7 GPUs would have done: 7.00 GPU-hours, $17.50."
    )
    fixed = made_answer(["static", "hpa"], fixed=9)
    assert "no smaller fixed fleet" in winning_sentence(fixed)


def test_an_autoscaler_that_took_no_action_is_a_fixed_fleet():
    answer = made_answer(3)
    assert "no action" not in winning_sentence(answer)
    winner = answer.ranking[0]
    still = winner.held_out.model_copy(update={"scaling_actions": 0, "peak_gpus": 4})
    ranking = (winner.model_copy(update={"held_out": still}), *answer.ranking[1:])
    said = winning_sentence(answer.model_copy(update={"ranking": ranking}))
    assert "took no action on the held-out part; a fixed fleet of 4 GPUs costs the same." in said


def test_what_a_policy_runs_on_is_a_column_and_the_next_command_can_be_run(tmp_path: Path):
    answer = made_answer(["paced", "hpa", "static", "keda"])
    assert "runs on" not in page_of(answer, tmp_path).text
    on = {"paced": "nothing yet", "hpa": "HPA", "static": "a replica count", "keda": "KEDA"}
    ranking = tuple(r.model_copy(update={"runs_on": on[r.policy]}) for r in answer.ranking)
    told = answer.model_copy(update={"ranking": ranking})
    text = page_of(told, tmp_path).text
    assert "runs on" in text
    assert "nothing yet" in text
    assert next_command(told).endswith("out=deploy policy=hpa")
    assert (
        "No real cluster tells what paced needs; hpa is the best that can run: "
        in winning_sentence(told)
    )
    assert next_command(told).startswith("llmscale deploy answer=results/advise/answer.json")


def test_a_trace_without_classes_has_a_share_on_time():
    assert (on_time("all"), on_time("chat")) == ("share on time", "chat on time")


def test_an_answer_with_nothing_in_it_has_a_page(tmp_path: Path):
    answer = made_answer(["static"], what_ifs=False)
    ranked = answer.ranking[0]
    nothing = {"chat": None}
    outcome = ranked.held_out.model_copy(
        update={
            "attainment": nothing,
            "gpu_hours": 0.0,
            "worst_five_minutes": None,
            "ttft_p99_s": nothing,
            "itl_p99_s": nothing,
        }
    )
    empty = dict.fromkeys(("arrivals_per_s", "ready", "loading", "waiting", "running"), ())
    series = ranked.series.model_copy(update={**empty, "on_time": {"chat": ()}, "decisions": ()})
    ranked = ranked.model_copy(update={"held_out": outcome, "series": series})
    text = page_of(answer.model_copy(update={"ranking": (ranked,)}), tmp_path).text
    assert "What if" not in text
    assert "no decision that changed the fleet" in text


def test_a_page_is_whole_or_not_there(tmp_path: Path):
    page = tmp_path / "deep" / "page.html"
    write_page(made_answer(1), page)
    assert [path.name for path in page.parent.iterdir()] == ["page.html"]
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(OSError):
        write_page(made_answer(1), blocked / "page.html")


@pytest.mark.parametrize(
    "share,text",
    [(1.0, "100.00 %"), (0.99999, "99.99 %"), (0.57, "57.00 %"), (0.0, "0.00 %"), (None, "–")],
)
def test_a_share_is_never_rounded_up(share: float | None, text: str):
    assert percent(share) == text


@pytest.mark.parametrize(
    "value_s,text", [(45, "45 s"), (3600, "60 minutes"), (7200, "2 hours"), (9000, "2.5 hours")]
)
def test_lengths_of_time_have_a_unit_that_suits(value_s: float, text: str):
    assert span_text(value_s) == text


def test_the_lowest_class_is_the_one_furthest_below_its_target():
    outcome = made_answer(1, classes=3).ranking[0].held_out
    shares = {"chat": 0.98, "code": 0.93, "batch": None}  # targets 0.99, 0.95, 0.9
    found = lowest(outcome.model_copy(update={"attainment": shares}), CLASSES)
    assert found is not None
    assert found[0].name == "code"


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs Chromium")
@pytest.mark.parametrize("policies,classes,usd", [(2, 1, None), (12, 3, 2.5)])
def test_a_browser_draws_it_without_complaint(
    policies: int, classes: int, usd: float | None, tmp_path: Path
):
    page = write_page(made_answer(policies, classes, usd), tmp_path / "page.html")
    # Opens every part, and tells how many charts were drawn, at what width.
    script = (
        "<script>for (const part of parts) part.open = true; setTimeout(() => { document.title = "
        "[...document.querySelectorAll('.chart')].map(c => c.querySelectorAll('.main-svg').length > 0 "
        "&& c.getBoundingClientRect().width > 900).join(' '); }, 3000);</script></body>"
    )
    page.write_text(page.read_text().replace("</body>", script))
    words = ["chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "--dump-dom"]
    words += ["--disable-dev-shm-usage", "--enable-logging=stderr", "--window-size=1280,2000"]
    words += [f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=20000"]
    done = subprocess.run([*words, page.as_uri()], capture_output=True, text=True, timeout=180)
    complaints = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    assert complaints == []
    title = re.search(r"<title>(.*?)</title>", done.stdout)
    assert title is not None
    assert title[1].split() == ["true"] * (policies + 1)


def test_policies_that_lie_on_each_other_have_one_label():
    from experiments.desk.page import _labels

    points = [("a", 4.0, 0.5), ("b", 4.01, 0.55), ("c", 4.0, 0.5), ("d", 3.0, 0.5), ("e", 4.0, 5.0)]
    assert _labels(points) == ["a + 2 others", "", "", "d", "e"]
    assert _labels([("x", 1.0, 1.0), ("<y>", 1.0, 1.0)]) == ["x, &lt;y&gt;", ""]
