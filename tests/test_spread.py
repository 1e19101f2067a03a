"""Calls side by side: the same answers from this process, from others, whatever goes wrong in them."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from llmscale_env import _spread
from llmscale_env._cli import Slip
from llmscale_env._spread import (
    Launcher,
    OtherCode,
    WorkerLost,
    crew,
    launcher_of,
    spread,
    versions,
)
from llmscale_env._spread.versions import check_code
from tests.ray_calls import assert_told_and_answered
from tests.waiting import PATIENCE_S, command, ended, until

HERE, TWO = Launcher(workers=1), Launcher(workers=2)


def square(x: int) -> tuple[int, int]:
    if x == 13:
        raise ValueError("13 is no good")
    return x * x, os.getpid()


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def sleep(path: str) -> None:
    Path(path).touch()
    time.sleep(PATIENCE_S)
    Path(path + ".over").touch()


@pytest.mark.parametrize("launcher", [HERE, TWO])
def test_every_call_is_answered_once(launcher: Launcher):
    found = dict(spread(square, [(x,) for x in range(8)], launcher))
    assert {key: value for key, (value, _) in found.items()} == {x: x * x for x in range(8)}
    processes = {process for _, process in found.values()}
    assert (processes == {os.getpid()}) == (launcher is HERE)
    assert len(processes) <= 2


def test_no_calls_start_nothing():
    assert list(spread(square, [], TWO)) == []


@pytest.mark.parametrize("launcher", [HERE, TWO])
def test_what_a_call_raises_is_raised(launcher: Launcher):
    with pytest.raises(ValueError, match="13 is no good"):
        list(spread(square, [(1,), (13,), (2,)], launcher))


@pytest.mark.parametrize("launcher", [HERE, TWO])
def test_more_is_submitted_while_answers_come(launcher: Launcher):
    seen = []
    with crew(launcher) as workers:
        workers.submit("first", square, 2)
        for key, (value, _) in workers:
            seen.append((key, value))
            if value < 1000:
                workers.submit(f"after {key}", square, value)
        assert len(workers) == 0
    assert [value for _, value in seen] == [4, 16, 256, 65536]
    assert seen[-1][0] == "after after after first"


@pytest.mark.parametrize("launcher", [HERE, TWO])
def test_calls_tell_and_are_answered(launcher: Launcher):
    assert_told_and_answered(launcher)


def test_a_process_that_dies_is_told():
    with pytest.raises(WorkerLost, match="a process ended without an answer"):
        list(spread(die, [(), ()], TWO))


def test_calls_under_way_are_given_up(tmp_path: Path):
    with crew(TWO, 2) as workers:
        workers.submit(0, sleep, str(tmp_path / "began"))
        until((tmp_path / "began").exists, "the call that is to be given up")
        workers.submit(1, square, 2)
        assert next(iter(workers))[0] == 1
    assert [path.name for path in tmp_path.iterdir()] == ["began"]  # nobody waited for its end


def test_processes_end_with_a_command_that_is_killed(tmp_path: Path):
    program = (
        "from tests.test_spread import *\n"
        "if __name__ == '__main__':\n"
        f"    list(spread(sleep, [({str(tmp_path / 'a')!r},), ({str(tmp_path / 'b')!r},)], TWO))\n"
    )
    script = tmp_path / "script.py"
    script.write_text(program)
    with command(script) as process:
        until((tmp_path / "a").exists, "the first call", process)
        process.kill()
        ended(process)  # and all that it started
    assert not (tmp_path / "a.over").exists()


@pytest.mark.parametrize(
    "options, message",
    [
        ({"launcher": "slurm"}, "launcher = 'slurm': must be one of ['processes', 'ray']"),
        ({"ray.address": "auto"}, "ray.address = 'auto': goes with launcher=ray"),
        ({"workers": "0"}, "workers = '0': must be an integer in 1..1024"),
    ],
)
def test_slips(options: dict[str, str], message: str):
    with pytest.raises(Slip) as slip:
        launcher_of(options)
    assert str(slip.value) == message


def test_what_words_mean(monkeypatch: pytest.MonkeyPatch):
    assert launcher_of({"workers": "3"}) == Launcher("processes", 3)
    assert launcher_of({}, workers=1) == Launcher("processes", 1)
    assert launcher_of({}).workers == _spread.default_workers()
    monkeypatch.setattr(_spread.importlib.util, "find_spec", lambda name: True)
    assert launcher_of({"launcher": "ray"}) == Launcher("ray", None)
    asked = {"launcher": "ray", "workers": "2", "ray.address": "head:6379"}
    assert launcher_of(asked) == Launcher("ray", 2, "head:6379")


def test_without_ray_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(_spread.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(Slip, match=r"launcher=ray needs Ray: pip install 'llmscale\[ray\]'"):
        launcher_of({"launcher": "ray"})
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(Slip, match="needs Ray"), crew(Launcher("ray")):
        pass


def test_a_machine_with_other_code_is_refused():
    mine = versions.identity()
    check_code(mine, mine)
    assert set(mine) == {"llmscale's code", *versions.COMPARED}
    with pytest.raises(OtherCode, match=r"numpy is 1\.0 there, .* here$"):
        check_code(mine, {**mine, "numpy": "1.0"})
