"""`python -m experiments.worlds`: its tables and pages, a world's tension, players that look at nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from agents.blind_players import ConstantAction, DoNothing, RandomActions, action_space_of
from agents.pretrained import shipped
from baselines.tuning.trials import Outcome
from experiments import worlds
from experiments.worlds import (
    WORLDS,
    Row,
    World,
    chief,
    distinct,
    gain,
    main,
    put,
    rests_on,
    table,
    tension,
)
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
    assert "static at 99 % takes 32 GPU-hours, 2.00 times the 16 of paced" in tension(rows)
    assert tension([*rows[:2], row("slow", (-1, 1.0, 40))]).endswith(
        "fewer GPU-hours than a fixed fleet: static at 99 % takes 32, slow 40."
    )
    assert "no rule that changes its fleet here" in tension(rows[:2])
    assert "no fixed fleet here" in tension(rows[1:])
    # Who has learnt is no rule, however good.
    rows.append(Row("ppo", row("ppo", (-1, 1.0, 1), (-1, 1.0, 1)).outcomes, is_rule=False))
    assert "the 16 of paced" in tension(rows)
    assert gain([rows[-1], *rows[:-1]]).startswith("Tension: paced has ")


def test_gain_by_hand():
    rows = [row("qlm", (-1, 0.9, 1), (-3, 0.9, 1)), row("random", (-2, 0.9, 1), (-6, 0.9, 1))]
    assert gain(rows).startswith("Tension: qlm has 2 ")
    assert "than random" in gain(rows)


def test_the_table_has_the_worst_class_and_how_far_each_is_behind():
    slow = Row("slow", [Outcome(-7, 0.9, (1.0, 0.5), 2.0), Outcome(-9, 0.9, (1.0, 0.7), 4.0)])
    fast = Row("fast", [Outcome(-2, 1.0, (1.0, 1.0), 9.0), Outcome(-4, 1.0, (1.0, 1.0), 9.0)])
    lines = table([fast, slow], "2 episodes each.", "Tension: none.").splitlines()
    assert (lines[0], lines[-1]) == ("2 episodes each.", "Tension: none.")
    first, second = (line.split(" | ") for line in lines[4:6])
    assert [first[0], first[2]] == ["| fast", ""]
    assert second[0] == "| slow"
    assert second[2].startswith("-5 ")
    assert second[3:] == ["90.00", "60.00", "3 |"]


def test_equal_episodes_count_once_and_one_has_no_interval():
    rows = distinct([row("a", (-1, 1, 1), (-1, 1, 1), (-2, 1, 1)), row("b", *[(-4, 1, 1)] * 3)])
    assert [len(each.outcomes) for each in rows] == [2, 2]
    assert [each.mean("reward") for each in rows] == [-1.5, -4]
    assert rests_on(20, 20) == "20 episodes each."
    assert rests_on(2, 3) == "2 episodes each (those of 3 that differ)."
    assert rests_on(1, 1) == "1 episode each: no intervals."
    (same,) = distinct([row("a", (-1, 1, 1), (-1, 1, 1))])
    assert "| a | -1 |" in table([same], rests_on(1, 2), "")


def test_a_class_that_is_not_judged_is_not_on_time():
    nan = float("nan")
    outcomes = [Outcome(-1, 1.0, (0.9, nan), 1.0), Outcome(-1, 1.0, (1.0, 0.6), 1.0)]
    assert Row("a", outcomes).worst_class == pytest.approx(0.6)
    assert Row("a", outcomes[:1]).worst_class == pytest.approx(0.9)


def test_the_short_table_has_who_matters():
    names = (
        *("ppo (learned: runs/a)", "hpa at 99 %", "paced-tuned", "chiron-tuned", "static-tuned"),
        *("jsq", "static", "constant action", "random, masked", "random", "do-nothing", "chiron"),
    )
    rows = [Row(name, row(name, (-k, 1, 1)).outcomes, k > 0) for k, name in enumerate(names)]
    left_out = {"paced-tuned", "jsq", "static", "random, masked"}
    shown = [each.name for each in chief(rows, World("", list, "chiron"))]
    assert shown == [name for name in names if name not in left_out]
    # Where the number of GPUs is given, every policy that looks is a rule.
    shown = [each.name for each in chief(rows[5:], World("", list, "chiron", at_target=False))]
    assert shown == ["jsq", "static", "constant action", "random", "do-nothing", "chiron"]


def test_a_table_is_put_between_its_marks_once(tmp_path: Path):
    page = tmp_path / "page.md"
    page.write_text("# A page\n")
    put(page, "placement", "first")
    put(page, "mixed-slo", "other")
    put(page, "placement", "second \\1")
    block = "## {0}\n\n<!-- worlds: {0} -->\n{1}\n<!-- end -->\n"
    blocks = (block.format("placement", "second \\1"), block.format("mixed-slo", "other"))
    assert page.read_text() == "\n".join(("# A page\n", *blocks))


def test_a_title_is_made_at_the_end_of_the_environments_section(tmp_path: Path):
    page = tmp_path / "page.md"
    before = "# A page\n\n## placement: workers\n\nWords.\n\n### Prices\n\nMore.\n"
    after = "\n## placement-per-request: one\n\nOthers.\n"
    page.write_text(before + after)
    for text in ("first", "second"):
        put(page, "placement", text, "### At their best")
        block = f"<!-- worlds: placement -->\n{text}\n<!-- end -->\n"
        assert page.read_text() == f"{before}\n### At their best\n\n{block}{after}"


@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_marks_in_code_are_no_marks_and_line_ends_stay(line_end: str, tmp_path: Path):
    page = tmp_path / "page.md"
    marks = ("<!-- worlds: placement -->", "<!-- end -->")
    code = ["```markdown", "## placement", marks[0], "shown", marks[1], "```", ""]
    longer = ["~~~~", "~~~", marks[0], "~~~~", ""]
    before = ["# Page", "", *code, *longer, "## placement", "", "Words.", ""]

    def lines() -> list[str]:
        text = page.read_bytes().decode()
        assert text.count("\n") == text.count(line_end)
        return text.split(line_end)

    page.write_bytes(line_end.join([*before, "## other", ""]).encode())
    for text in ("first", "second\nof two lines"):
        put(page, "placement", text)
        mine = [marks[0], *text.split("\n"), marks[1], ""]
        assert lines() == [*before, *mine, "## other", ""]
    page.write_bytes(line_end.join(["# Page", "", *code[:-1], ""]).encode())
    put(page, "placement", "made")
    end = ["## placement", "", marks[0], "made", marks[1], ""]
    assert lines() == ["# Page", "", *code, *end]


def test_a_bar_in_a_name_stays_in_its_cell():
    lines = table([row("ppo (learned: runs/a|b)", (-1, 1, 1))], "", "").splitlines()
    assert lines[4].startswith("| ppo (learned: runs/a\\|b) | ")


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


@pytest.fixture
def short_world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Words of a command of seconds, about episodes of 20 s; its pages are in `tmp_path`."""
    monkeypatch.setattr(worlds, "default_folder", lambda: tmp_path)
    short = load_scenario("burst-multicast", horizon_s=20.0)
    world = World("burst-multicast", lambda: [short], "blitzscale", ("blitzscale:min_prefill=4",))
    monkeypatch.setitem(WORLDS, "burst-multicast", world)
    for name in ("board.md", "worlds.md"):
        (tmp_path / name).write_text("# A page\n\n## burst-multicast: weights\n\n## another\n")
    pages = [f"page={tmp_path / 'board.md'}", f"summary={tmp_path / 'worlds.md'}"]
    return ["env=burst-multicast", "scale=quick", "search=none", *pages]


def test_it_judges_everybody_without_a_search(
    short_world: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert main(short_world) == 0
    first = capsys.readouterr().out
    board, summary = ((tmp_path / name).read_text() for name in ("board.md", "worlds.md"))
    chiefs = ("blitzscale", "do-nothing", "random")
    for name in (*chiefs, "static", "blitzscale:min_prefill=4", "random, masked"):
        assert f"\n| {name} | " in board
    assert all(f"\n| {name} | " in summary for name in chiefs)
    assert "\n| random, masked | " not in summary
    assert "](board.md#burst-multicast) has all " in summary
    assert "### Every policy at its best: burst-multicast" in summary
    for text in (board, summary):
        assert text.index("Tension: ") < text.index("## another")
    # Every episode comes from the cache the second time.
    kept = {path: path.read_bytes() for path in tmp_path.glob("worlds_*.jsonl")}
    assert main(short_world) == 0
    assert capsys.readouterr().out == first
    assert kept == {path: path.read_bytes() for path in tmp_path.glob("worlds_*.jsonl")}
    assert kept


def test_a_trained_policy_is_judged_and_marked(short_world: list[str], tmp_path: Path):
    run = min(each.folder for each in shipped("burst-multicast"))
    assert main([*short_world, f"learned={run}"]) == 0
    line = f"\n| maskable-ppo (learned: {run}) | "
    board = (tmp_path / "board.md").read_text()
    assert line in board
    assert f"scale=quick search=none learned={run}`" in board
    assert not list(tmp_path.glob("*learned*"))  # its episodes are not kept


def test_planners_are_judged_where_they_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(worlds, "default_folder", lambda: tmp_path)
    short = load_scenario("mixed-slo-hours", horizon_s=90.0)
    monkeypatch.setitem(WORLDS, "mixed-slo", World("mixed-slo-hours", lambda: [short], "chiron"))
    board = tmp_path / "board.md"
    board.write_text("# A page\n\n## mixed-slo: chat\n")
    words = ["env=mixed-slo", "scale=quick", "search=none", "episodes=1", f"page={board}"]
    assert main(words) == 0
    assert "\n| twin | " not in board.read_text()
    assert main([*words, "planners=true"]) == 0
    assert "\n| twin | " in board.read_text()
    assert "search=none planners=true`" in board.read_text()


def test_wrong_run_folders_are_one_clear_error(
    short_world: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "empty").mkdir()
    (other,) = {each.folder for each in shipped("multi-model-queue") if each.recommended}
    for folder, message in (
        (tmp_path / "nowhere", "there is no such file"),
        (tmp_path / "empty", "the folder holds none of"),
        (other, "was trained on 'multi-model-queue', not on burst-multicast"),
    ):
        assert main([*short_world, f"learned={folder}"]) == 2
        out, error = capsys.readouterr()
        assert error.startswith(f"worlds: learned = {str(folder)!r}: ")
        assert message in error
        assert error.count("\n") == 1
        assert out == ""


def test_a_model_is_judged_once(
    short_world: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    run = min(each.folder for each in shipped("burst-multicast"))
    assert main([*short_world, f"learned={run},{run}/"]) == 2
    out, error = capsys.readouterr()
    assert error == f"worlds: learned = '{run}/': is given twice\n"
    assert out == ""


def test_an_interrupted_search_is_the_commands_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("baselines.tune.load_scenario", interrupted)
    monkeypatch.setattr(worlds, "default_folder", lambda: tmp_path)
    assert main(["env=burst-multicast", "scale=quick", "search=all"]) == 130
    assert capsys.readouterr().err.startswith("worlds: interrupted; finished episodes are kept")


@pytest.mark.parametrize(
    "words, message",
    [
        (["env=mixed-slow"], "env = 'mixed-slow'"),
        (
            ["env=placement,llmscale/MixedSLO-v1"],
            "is Gymnasium's id; the command line says env=mixed-slo",
        ),
        (["scale=large"], "scale = 'large'"),
        (["search=some"], "search = 'some'"),
        (["planners=all"], "planners = 'all': must be true or false"),
        (["episodes=0"], "episodes = "),
        (["episode=3"], "episode"),
        (["page=nowhere.md"], "page = 'nowhere.md': there is no such file"),
        (["summary=nowhere.md"], "summary = 'nowhere.md': there is no such file"),
    ],
)
def test_slips(words: list[str], message: str, refused):
    assert message in refused(main, words)


def test_no_words_show_the_help_and_start_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    begun = []
    monkeypatch.setattr(worlds, "_run", lambda words: begun.append(words) or 0)
    assert main([]) == 2
    assert capsys.readouterr().out.strip() == str(worlds.__doc__).strip()
    assert main(["scale=paper"]) == 0
    assert begun == [["scale=paper"]]


def test_a_page_is_tried_before_anything_is_simulated(tmp_path, capsys):
    words = ["env=placement-per-request", "scale=quick", "search=none", "episodes=1"]
    half = (
        "<!-- worlds: placement-per-request -->\nprose\n<!-- worlds: placement -->\n<!-- end -->\n"
    )
    pages = {
        "half.md": (half.encode(), "no <!-- end --> after <!-- worlds: placement-per-request -->"),
        "bytes.md": (b"\xff\xfe\x00", "is no text in UTF-8"),
    }
    for name, (content, error) in pages.items():
        page = tmp_path / name
        page.write_bytes(content)
        assert worlds.main([*words, f"page={page}"]) == 2
        assert error in capsys.readouterr().err
        assert page.read_bytes() == content
    page.write_text("# page\n")
    assert worlds.main([*words, f"page={page}", f"summary={page}"]) == 2
    assert "must be another file than page" in capsys.readouterr().err
