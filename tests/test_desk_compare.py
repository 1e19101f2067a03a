"""Two answers side by side, and files that are none."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from experiments.desk.answer import FORMAT, read_answer
from experiments.desk.compare import compared, main
from llmscale_env._cli import Slip
from tests.answers import made_answer, written


def rows(text: str, title: str) -> list[list[str]]:
    """Cells of a table of Markdown below its heading."""
    part = text.partition(f"## {title}")[2].partition("\n## ")[0]
    lines = [line for line in part.splitlines() if line.startswith("|") and "---" not in line]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]]


def test_an_answer_equals_itself():
    answer = made_answer(3, classes=2)
    text = compared(answer, answer, markdown=True)
    assert "both answer the same question" in text
    assert {row[-1] for row in rows(text, "On time")} == {"+0.00 points"}
    assert {tuple(row[-2:]) for row in rows(text, "Cost")} == {("+0.00", "+0.0 %")}
    assert "Settings that differ" not in text


def test_differences_are_told():
    a = made_answer(["hpa", "static"], usd=2.5)
    b = made_answer(["keda", "hpa"], classes=2, usd=3.0, load_s=60.0)
    text = compared(a, b, ("one", "two"), markdown=True)
    asked = rows(text, "Question")
    assert ["load_s", "180", "60"] in asked
    assert ["usd_per_gpu_hour", "2.5", "3"] in asked
    assert ["target of code", "–", "ttft 2 s, itl 0.1 s for 95 %"] in asked
    assert [row[:2] for row in rows(text, "Winner")] == [["one", "hpa"], ["two", "keda"]]
    # hpa is first of two in the one and second in the other: half a GPU-hour more.
    costs = {(row[0], row[1]): row[2:] for row in rows(text, "Cost")}
    assert costs["hpa", "GPU-hours"] == ["8.20", "8.70", "+0.50", "+6.1 %"]
    assert costs["hpa", "dollars"] == ["$20.50", "$26.10", "+5.60", "+27.3 %"]
    assert costs["static", "GPU-hours"] == ["8.70", "–", "–", "–"]
    shares = {(row[0], row[1]): row[2:] for row in rows(text, "On time")}
    assert shares["hpa", "chat"] == ["99.70 %", "99.70 %", "+0.00 points"]
    assert shares["hpa", "code"] == ["–", "99.64 %", "–"]
    assert shares["static", "chat"][1:] == ["–", "–"]


def test_held_out_parts_of_other_lengths_are_compared_by_the_hour():
    a, b = made_answer(1), made_answer(1, tuned_s=1800.0)
    text = compared(a, b, markdown=True)
    assert "per hour (of 1 and of 1.5 hours" in text
    assert rows(text, "Cost")[0] == ["hpa", "GPU-hours", "8.20", "5.47", "-2.73", "-33.3 %"]


def test_without_a_price_there_are_no_dollars():
    answer = made_answer(2, usd=None)
    text = compared(answer, answer, markdown=True)
    assert [row[1] for row in rows(text, "Cost")] == ["GPU-hours", "GPU-hours"]


def test_other_settings_are_told():
    a = made_answer(2)
    other = a.ranking[0].model_copy(update={"spelled": "hpa:kv_target=0.9"})
    b = a.model_copy(update={"ranking": (other, a.ranking[1])})
    found = rows(compared(a, b, markdown=True), "Settings that differ")
    assert found == [["hpa", a.ranking[0].spelled, "hpa:kv_target=0.9"]]


def test_the_command_prints_and_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    first = written(made_answer(2), tmp_path / "load=180.json")
    second = written(made_answer(2, load_s=60.0), tmp_path / "b.json")
    page = tmp_path / "page.md"
    assert main([str(first), str(second), f"out={page}"]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    assert "load_s  180       60" in said.out
    assert page.read_text().startswith("# load=180.json and b.json\n")
    assert rows(page.read_text(), "Question") == [["load_s", "180", "60"]]


def test_a_bar_in_a_name_ends_no_cell():
    a = made_answer(1)
    b = made_answer(1, trace="a|b.csv")
    assert r"a\|b.csv" in compared(a, b, markdown=True)
    assert "a|b.csv" in compared(a, b)


def broken(change: Callable[[dict[str, Any]], object]) -> str:
    """An answer as text, after a change."""
    found = json.loads(made_answer(2).model_dump_json())
    change(found)
    return json.dumps(found)


BAD = {
    "no JSON": "{",
    "is no answer": "[1, 2]",
    "is no answer of": "{}",
    f"must be {FORMAT}": broken(lambda a: a.update(format=FORMAT + 1)),
    "format = None": broken(lambda a: a.update(format=None)),
    "winner": broken(lambda a: a.update(winner="nobody")),
    "question.llm": broken(lambda a: a["question"].pop("llm")),
    "more": broken(lambda a: a.update(more=1)),
    "one length": broken(lambda a: a["ranking"][0]["series"]["ready"].pop()),
    "every policy once": broken(lambda a: a["ranking"].append(a["ranking"][0])),
    "gpu_hours": broken(lambda a: a["ranking"][1]["held_out"].update(gpu_hours="many")),
}


@pytest.mark.parametrize("says", BAD)
def test_what_is_no_answer_is_refused_in_a_line(
    says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    good = written(made_answer(1), tmp_path / "good.json")
    bad = tmp_path / "bad.json"
    bad.write_text(BAD[says])
    with pytest.raises(Slip):
        read_answer(bad)
    assert main([str(good), str(bad)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert "bad.json: " in said.err
    assert says.replace("no JSON", "not JSON") in said.err


def test_an_answer_is_read_as_it_was_written(tmp_path: Path):
    answer = made_answer(3, classes=3, usd=None)
    assert read_answer(written(answer, tmp_path / "a.json")) == answer


@pytest.mark.parametrize(
    "words,says",
    [
        (["a.json"], "takes two answers"),
        (["a.json", "a.json", "a.json"], "3 are given"),
        (["a.json", "missing.json"], "missing.json: cannot be read"),
        (["a.json", "a.json", "to=x.md"], "unknown argument 'to=x.md'"),
        (["a.json", "a.json", "out=x.html"], "must end in .md"),
    ],
)
def test_slips_are_told_in_a_line(
    words: list[str],
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    monkeypatch.chdir(tmp_path)
    written(made_answer(1), tmp_path / "a.json")
    assert main(words) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert says in said.err
    assert said.err.count("\n") == 1


def test_what_only_one_rests_on_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    a = made_answer(2)
    b = a.model_copy(update={"rests_on": (*a.rests_on[1:], "Iteration times: a roofline.")})
    paths = [str(written(x, tmp_path / f"{k}.json")) for k, x in enumerate((a, b))]
    assert main(paths) == 0
    out = capsys.readouterr().out
    assert f": {a.rests_on[0]}\n" in out
    assert ": Iteration times: a roofline.\n" in out
    assert main([paths[0], paths[0]]) == 0
    assert "rests on" not in capsys.readouterr().out
