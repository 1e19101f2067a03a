"""Folders that commands work in: nobody writes where another works, and damaged files are told in a line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from agents import train, tune
from agents.runs.folders import LOCK, FolderTaken, held, is_unused
from llmscale_env._cli import Slip
from tests.small_runs import SMALL_RUN

TINY = [
    *SMALL_RUN,
    "scenario.workload=chat",
    "total_timesteps=16",
    "ppo.n_steps=8",
    "ppo.net=[4]",
    "validation_episodes=1",
    "evaluation_episodes=0",
    "references=none",
]
HOLDS = """
import sys
from pathlib import Path
from agents.runs.folders import held
with held(Path(sys.argv[1]), goes_on=False):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_folder_is_for_one_process(tmp_path: Path, capsys):
    folder = tmp_path / "run"
    with subprocess.Popen(
        [sys.executable, "-c", HOLDS, str(folder)],
        cwd=Path(__file__).parent.parent,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with (
            pytest.raises(FolderTaken, match="another command is at work"),
            held(folder, goes_on=True),
        ):
            pass
        for main, words in ((train.main, TINY), (tune.main, ["env=burst-multicast"])):
            assert main([*words, f"out={folder}"]) == 2
            assert "another command is at work" in capsys.readouterr().err
        other.kill()
    # Its death lets go.
    with held(folder, goes_on=False):
        pass


def test_who_names_no_folder_gets_one_that_is_free(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(train, "RUNS", tmp_path)
    first = tmp_path / "burst-multicast-ppo-seed0"
    free = train._free_folder

    def too_late(config):
        # Between the look and the start another command has taken it.
        found = free(config)
        if found == first:
            found.mkdir()
            (found / "config.yaml").write_text("of another")
        return found

    monkeypatch.setattr(train, "_free_folder", too_late)
    assert train.main(TINY) == 0
    assert [p.name for p in first.iterdir() if p.name != LOCK] == ["config.yaml"]
    assert (tmp_path / "burst-multicast-ppo-seed0-2" / "model_last.safetensors").is_file()


def test_what_is_unused(tmp_path: Path):
    assert is_unused(tmp_path / "none")
    (tmp_path / "log.txt").write_text("told to stop before it began")
    assert is_unused(tmp_path)
    (tmp_path / "config.yaml").write_text("")
    assert not is_unused(tmp_path)
    with pytest.raises(Slip, match="is a file"):
        is_unused(tmp_path / "config.yaml")


def test_places_and_files_that_fail_are_told_in_a_line(tmp_path: Path, capsys):
    (tmp_path / "file").write_text("")
    assert train.main([*TINY, f"out={tmp_path / 'file' / 'run'}"]) == 2
    assert "Not a directory" in capsys.readouterr().err
    run = tmp_path / "run"
    assert train.main([*TINY, f"out={run}"]) == 0
    for name in ("run.json", "validation.csv"):
        good = (run / name).read_text()
        (run / name).write_text(good[:-10].rpartition(",")[0])
        capsys.readouterr()
        assert train.main([TINY[0], f"out={run}", "resume=true", "total_timesteps=32"]) == 2
        (line,) = [s for s in capsys.readouterr().err.splitlines() if s.startswith("train: ")]
        assert f"{run / name}: is damaged" in line
        (run / name).write_text(good)


def test_a_place_that_takes_no_files_is_named(capsys: pytest.CaptureFixture[str]):
    assert train.main([*TINY, "out=/proc/x"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("train: out = '/proc/x': nothing can be written to /proc/x")
    assert error.count("\n") == 1
