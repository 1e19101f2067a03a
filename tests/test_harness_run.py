"""Running experiments: cached by content, resumed after failures, interruptions and damage."""

from __future__ import annotations

import json
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from experiments import run as command
from experiments.harness import catalogue
from experiments.harness.cache import RunCache
from experiments.harness.catalogue import Entry, Experiment, load
from experiments.harness.execute import execute, plain_value
from experiments.harness.figure import Grid
from experiments.harness.results import ROWS, read_result
from llmscale_env._sealed import opened
from llmscale_env._spread import Launcher, WorkerLost
from tests import harness_example
from tests.waiting import command as started
from tests.waiting import ended, until

MODULE = "tests.harness_example"
ENTRY = Entry("test-example", "test", MODULE, Path(harness_example.__file__), "An example.", "")


@pytest.fixture
def experiment() -> Experiment:
    return load(ENTRY)


def settings(experiment, tmp_path, **changes):
    return experiment.settings("quick", {"log": str(tmp_path / "log"), **changes})


def runs_done(tmp_path) -> int:
    log = tmp_path / "log"
    return len(log.read_text().splitlines()) if log.exists() else 0


def make(experiment, mine, tmp_path, **more):
    return command.make_result(experiment, "quick", mine, tmp_path, "command", **more)


def test_result_is_written_and_read_back(experiment, tmp_path):
    made = make(experiment, settings(experiment, tmp_path), tmp_path)
    assert runs_done(tmp_path) == 4
    found = read_result(tmp_path / "test-example" / "quick")
    assert found == replace(made, wall_s=found.wall_s)
    assert found.claims[0].ours.mean == pytest.approx(2 * (1 + 2) / 2)
    assert found.parameters["factors"] == ([2, 3], "paper, section 0")
    rows = (found.folder / ROWS).read_text().splitlines()
    assert rows[0] == "seed,factor,trouble,log,value,nothing"
    assert len(rows) == 5
    assert (found.folder / "test-example.png").stat().st_size > 1000


def test_finished_runs_are_used_again(experiment, tmp_path):
    mine = settings(experiment, tmp_path)
    first = make(experiment, mine, tmp_path)
    rows = (first.folder / ROWS).read_bytes()
    again = make(experiment, mine, tmp_path)
    assert runs_done(tmp_path) == 4
    assert (again.folder / ROWS).read_bytes() == rows


def test_what_times_the_machine_is_done_each_time(experiment, tmp_path):
    def timed(parameters):
        found = experiment.cases(parameters)
        return [{**case, "timed": case["factor"] == 2} for case in found]

    mine = settings(experiment, tmp_path)
    timing = replace(experiment, cases=timed)
    make(timing, mine, tmp_path)
    make(timing, mine, tmp_path)
    assert runs_done(tmp_path) == 4 + 2


def test_more_seeds_do_only_what_is_new(experiment, tmp_path):
    make(experiment, settings(experiment, tmp_path), tmp_path)
    make(experiment, settings(experiment, tmp_path, seeds="3"), tmp_path)
    assert runs_done(tmp_path) == 6


def test_other_code_does_it_again(experiment, tmp_path, monkeypatch):
    mine = settings(experiment, tmp_path)
    make(experiment, mine, tmp_path)
    monkeypatch.setattr(command, "fingerprint", lambda module, function=None: "another")
    make(experiment, mine, tmp_path)
    assert runs_done(tmp_path) == 8


@pytest.mark.parametrize("damage", ["", "{", '{"case": {}, "rows": [], "wall_s": 1}'])
def test_damaged_file_is_named_and_done_again(experiment, tmp_path, capsys, damage):
    mine = settings(experiment, tmp_path)
    make(experiment, mine, tmp_path)
    (victim,) = sorted((tmp_path / "cache" / "test-example").iterdir())[:1]
    victim.write_text(damage)
    make(experiment, mine, tmp_path)
    assert runs_done(tmp_path) == 5
    assert f"{victim} cannot be read; its run is done again" in capsys.readouterr().err
    assert opened(victim.read_text())["rows"]


def test_a_failing_run_leaves_the_others(experiment, tmp_path):
    mine = settings(experiment, tmp_path, trouble="raise")
    with pytest.raises(command.RunsFailed, match=r"2 of 4 runs failed.*factor 3 is no good"):
        make(experiment, mine, tmp_path)
    assert runs_done(tmp_path) == 2
    assert read_result(tmp_path / "test-example" / "quick") is None
    (tmp_path / "log.mended").touch()
    make(experiment, mine, tmp_path)
    assert runs_done(tmp_path) == 4


def test_processes_give_the_same_as_none(experiment, tmp_path):
    mine = settings(experiment, tmp_path)
    one = make(experiment, mine, tmp_path / "one")
    two = make(experiment, mine, tmp_path / "two", launcher=Launcher(workers=2))
    assert (one.folder / ROWS).read_bytes() == (two.folder / ROWS).read_bytes()


def test_a_killed_process_is_told_and_resumed(experiment, tmp_path):
    mine = settings(experiment, tmp_path, trouble="die")
    with pytest.raises(WorkerLost, match="a process ended without an answer"):
        make(experiment, mine, tmp_path, launcher=Launcher(workers=2))
    (tmp_path / "log.mended").touch()
    done = runs_done(tmp_path)
    make(experiment, mine, tmp_path)
    assert done <= 2
    assert len(list((tmp_path / "cache" / "test-example").glob("[!.]*.json"))) == 4


def test_sources_say_what_a_scale_changes(experiment, tmp_path):
    assert experiment.settings("quick", {}).sources()["factors"] == "paper, section 0"
    changed = experiment.settings("quick", {"factors": "2,5"}).sources()
    assert changed["factors"] == "changed here from [2, 3] (paper, section 0)"


@pytest.mark.parametrize("missing", ["cases", "claims", "plot"])
def test_what_an_experiment_cannot_make_of_its_parameters_is_one_line(
    experiment, tmp_path, monkeypatch, capsys, missing
):
    def broken(*_):
        raise KeyError("llumnix")

    monkeypatch.setattr(harness_example, missing, broken)
    monkeypatch.setattr(catalogue, "entries", lambda: (ENTRY,))
    assert command.main(["test-example", f"out={tmp_path}", f"log={tmp_path / 'log'}"]) == 1
    errors = capsys.readouterr().err.strip().splitlines()[-1]
    assert "KeyError: 'llumnix' (test_harness_run.py:" in errors
    assert ("these parameters make no runs" in errors) == (missing == "cases")
    assert runs_done(tmp_path) == (0 if missing == "cases" else 4)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_stopped_command_goes_on_where_it_was(experiment, tmp_path, number):
    program = (
        "import sys\n"
        "from experiments import run as command\n"
        "from experiments.harness import catalogue\n"
        "from tests.test_harness_run import ENTRY\n"
        "catalogue.entries = lambda: (ENTRY,)\n"
        "if __name__ == '__main__':\n"
        "    sys.exit(command.main(sys.argv[1:]))\n"
    )
    script = tmp_path / "script.py"
    script.write_text(program)
    words = ["test-example", f"out={tmp_path}", f"log={tmp_path / 'log'}", "trouble=hang"]
    kept = tmp_path / "cache" / "test-example"
    with started(script, *words, "workers=2") as process:
        until(lambda: list(kept.glob("[!.]*.json")), "a finished run in the cache", process)
        process.send_signal(number)
        _, errors = ended(process)  # the processes of the pool do not outlive the command
    if number == signal.SIGINT:
        assert process.returncode == 130
        assert "the same command goes on from there" in errors
        assert "Traceback" not in errors
    before = len(list(kept.glob("[!.]*.json")))  # no part file of one
    (tmp_path / "log.mended").touch()
    done = runs_done(tmp_path)
    mine = settings(experiment, tmp_path, trouble="hang")
    make(experiment, mine, tmp_path)
    assert before >= 1
    assert runs_done(tmp_path) - done == 4 - before


@pytest.mark.parametrize(
    "words, message",
    [
        ([], "which experiment"),
        (["chiron-fig99"], "unknown experiment 'chiron-fig99' (did you mean chiron-fig"),
        (["chiron-fig03", "scale=huge"], "scale = 'huge': must be one of"),
        (["chiron-fig03", "seeds=0"], "seeds = '0': must be an integer in 1..1000"),
        (["chiron-fig03", "workers=x"], "workers = 'x'"),
        (["chiron-fig03", "batch_limit=8"], "has no parameter 'batch_limit' (did you mean"),
        (["chiron-fig03", "batch_limits=a,b"], "batch_limits.0 = 'a'"),
        (["chiron-fig03", "lengths="], "lengths= lacks a value"),
        (["blitzscale-fig15"], "blitzscale-fig15 is part of blitzscale-fig14"),
        (["blitzscale-fig13", "columns=foo"], "columns.0 = 'foo'"),
        (["blitzscale-fig13", "systems=foo"], "systems.0 = 'foo'"),
        (["blitzscale-fig13", "trigger=foo"], "trigger = 'foo'"),
        (["blitzscale-fig03", "llms=foo"], "llms.0 = 'foo'"),
        (["blitzscale-fig05", "loads=foo"], "loads.0 = 'foo'"),
        (["blitzscale-fig04", "variants=foo"], "variants.0 = 'foo'"),
        (["blitzscale-fig04", "main=packde"], "main = 'packde'"),
        (["blitzscale-fig04", "variants=packed"], "main = 'published': must be one of variants"),
        (["blitzscale-fig09", "workloads=foo"], "workloads.0 = 'foo'"),
        (["blitzscale-fig16", "workloads=foo"], "workloads.0 = 'foo'"),
    ],
)
def test_slips_are_one_line_and_code_2(words, message, capsys, tmp_path):
    out = tmp_path / "out"
    assert command.main([*words, f"out={out}"] if words else []) == 2
    errors = capsys.readouterr().err
    assert errors.startswith("run: ")
    assert message in errors
    assert errors.count("\n") == 1
    assert not out.exists()


def test_a_place_that_takes_nothing_is_told_before_the_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(catalogue, "entries", lambda: (ENTRY,))
    (tmp_path / "file").write_text("")
    for out, said in (
        (tmp_path / "file", "is a file, and no folder\n"),
        (tmp_path / "file" / "below", f"nothing can be written to {tmp_path / 'file' / 'below'} ("),
    ):
        assert command.main(["test-example", f"out={out}", f"log={tmp_path / 'log'}"]) == 2
        assert capsys.readouterr().err.startswith(f"run: test-example: out = {str(out)!r}: {said}")
    assert runs_done(tmp_path) == 0


def test_a_slip_in_one_experiment_leaves_the_others(experiment, tmp_path, monkeypatch, capsys):
    other = replace(ENTRY, name="test-other")
    monkeypatch.setattr(catalogue, "entries", lambda: (other, ENTRY))

    def load_one(entry):
        def refused(_):
            raise ValueError("at = 3: must be 4")

        return replace(
            experiment, entry=entry, cases=refused if entry is other else experiment.cases
        )

    monkeypatch.setattr(command, "load", load_one)
    words = ["test-other", "test-example", f"out={tmp_path}", f"log={tmp_path / 'log'}"]
    assert command.main(words) == 2
    assert capsys.readouterr().err.startswith("run: test-other: at = 3: must be 4\n")
    assert runs_done(tmp_path) == 4


def test_a_module_that_lacks_something_is_told(monkeypatch):
    monkeypatch.delattr(harness_example, "claims")
    with pytest.raises(TypeError, match="lacks claims"):
        load(ENTRY)


def test_values_that_no_file_can_hold_are_refused():
    assert plain_value(float("inf")) is None
    with pytest.raises(TypeError, match="must be text, a number"):
        plain_value([1])


def test_an_error_in_a_run_says_where(tmp_path):
    case = {"seed": 0, "factor": 3, "trouble": "raise", "log": str(tmp_path / "log")}
    outcome = execute(MODULE, case)
    assert outcome.error.startswith("ValueError: factor 3 is no good (harness_example.py:")


def test_cache_files_say_what_they_hold(tmp_path):
    cache = RunCache(tmp_path, "code")
    case = {"seed": 1}
    assert cache.get(case) is None
    cache.put(case, [{"value": 2.5}], 0.5)
    assert cache.get(case) == ([{"value": 2.5}], 0.5)
    assert RunCache(tmp_path, "other code").get(case) is None
    assert RunCache(tmp_path, "code").get({"seed": 2}) is None
    (path,) = tmp_path.iterdir()
    path.write_text(path.read_text().replace("2.5", "3.5"))
    assert cache.get(case) is None
    assert cache.damaged == [path]


def test_every_shipped_experiment_keeps_the_contract():
    names = [entry.name for entry in catalogue.entries()]
    assert len(names) == len(set(names))
    for entry in catalogue.entries():
        experiment = load(entry)
        assert entry.title.endswith(".")
        assert entry.text
        kept = experiment.cases.keep if isinstance(experiment.cases, Grid) else ()
        for parameters in experiment.parameters.values():
            assert all(parameters.sources().values()), f"{entry.name}: a parameter has no source"
            cases = [dict(case) for case in experiment.cases(parameters)]
            assert cases
            texts = [json.dumps(case, sort_keys=True) for case in cases]
            assert len(set(texts)) == len(texts), f"{entry.name}: two runs are the same"
            assert all(set(kept) <= case.keys() for case in cases)
            assert all("seed" in case for case in cases)
