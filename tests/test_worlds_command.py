"""`python -m experiments.worlds`: its table, the tension of a world, and players that look at nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from baselines.tuning.trials import Outcome
from experiments import worlds
from experiments.blind_players import ConstantAction, DoNothing, RandomActions, action_space_of
from experiments.worlds import WORLDS, Row, gain, main, put, table, tension
from llmscale_env.control.run import run_episode
from llmscale_env.scenarios import load_scenario


def row(name: str, *figures: tuple[float, float, float]) -> Row:
    """Episodes of (reward, attainment, GPU-hours), with one class."""
    return Row(name, [Outcome(r, share, (share,), gpus) for r, share, gpus in figures])


def test_tension_by_hand():
    rows = [
        row("static at 99 %", (-5, 0.99, 30), (-5, 0.992, 34)),
        row("constant action", (-9, 0.98, 10), (-9, 0.98, 10)),  # cheaper, but late
        row("paced", (-3, 0.995, 15), (-3, 0.985, 17)),
        row("hpa", (-4, 1.0, 20), (-4, 1.0, 20)),
    ]
    assert "static at 99 % takes 32 GPU-hours, paced 16: 2.00 times" in tension(rows)
    assert "no rule here" in tension(rows[:2])
    assert "no fixed fleet here" in tension(rows[1:])


def test_gain_by_hand():
    rows = [row("qlm", (-1, 0.9, 1), (-3, 0.9, 1)), row("random", (-2, 0.9, 1), (-6, 0.9, 1))]
    assert gain(rows).startswith("Tension: qlm has 2 ")
    assert "than random" in gain(rows)


def test_the_table_has_the_best_first_and_the_worst_class():
    slow = Row("slow", [Outcome(-7, 0.9, (1.0, 0.5), 2.0), Outcome(-9, 0.9, (1.0, 0.7), 4.0)])
    fast = Row("fast", [Outcome(-2, 1.0, (1.0, 1.0), 9.0), Outcome(-4, 1.0, (1.0, 1.0), 9.0)])
    lines = table([slow, fast], 2, "python -m x", at_target=True).splitlines()
    assert lines[0] == "`python -m x`: 2 episodes each."
    first, second = (line.split(" | ") for line in lines[4:6])
    assert [first[0], first[2]] == ["| fast", ""]
    assert second[0] == "| slow"
    assert second[2].startswith("-5 ")
    assert second[3:] == ["90.00", "60.00", "3 |"]


def test_a_table_is_put_between_its_marks_once(tmp_path: Path):
    page = tmp_path / "page.md"
    page.write_text("# A page\n")
    put(page, "placement", "first")
    put(page, "mixed-slo", "other")
    put(page, "placement", "second \\1")
    text = page.read_text()
    assert "first" not in text
    assert text.count("second \\1") == text.count("other") == 1
    assert text.startswith("# A page\n")
    assert text.index("second") < text.index("other")


def test_blind_players():
    scenario = load_scenario("burst-multicast", horizon_s=20.0)
    space = action_space_of("burst-multicast", scenario)
    last = {name: part.high for name, part in space.items()}
    done = {
        name: run_episode(player, scenario, 0).summary
        for name, player in {
            "nothing": DoNothing(),
            "static": ConstantAction("burst-multicast"),
            "most": ConstantAction("burst-multicast", **last),
            "random": RandomActions("burst-multicast", masked=False),
            "again": RandomActions("burst-multicast", masked=False),
            "masked": RandomActions("burst-multicast", masked=True),
        }.items()
    }
    assert done["random"] == done["again"]
    assert len({summary["reward"] for summary in done.values()}) == 5


def test_it_judges_everybody_without_a_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(worlds, "default_folder", lambda: tmp_path)
    short = load_scenario("burst-multicast", horizon_s=20.0)
    world = worlds.World("burst-multicast", lambda: [short], ("blitzscale:min_prefill=4",))
    monkeypatch.setitem(WORLDS, "burst-multicast", world)
    page = tmp_path / "worlds.md"
    page.write_text("# Worlds\n")
    words = ["env=burst-multicast", "scale=quick", "search=none", f"page={page}"]
    assert main(words) == 0
    first = capsys.readouterr().out
    text = page.read_text()
    for name in (
        "static",
        "blitzscale",
        "blitzscale:min_prefill=4",
        "do-nothing",
        "random, masked",
    ):
        assert f"\n| {name} | " in text
    assert "Tension: " in text
    # Every episode comes from the cache the second time.
    kept = {path: path.read_bytes() for path in tmp_path.glob("worlds_*.jsonl")}
    assert main(words) == 0
    assert capsys.readouterr().out == first
    assert kept == {path: path.read_bytes() for path in tmp_path.glob("worlds_*.jsonl")}
    assert kept


@pytest.mark.parametrize(
    "words, message",
    [
        (["env=mixed-slow"], "env = 'mixed-slow'"),
        (["scale=large"], "scale = 'large'"),
        (["search=some"], "search = 'some'"),
        (["episodes=0"], "episodes = "),
        (["episode=3"], "episode"),
    ],
)
def test_slips(words: list[str], message: str, capsys: pytest.CaptureFixture[str]):
    assert main(words) == 2
    out, error = capsys.readouterr()
    assert message in error
    assert error.count("\n") == 1
    assert out == ""
