"""Several training seeds from one command: what one at a time gives, in good order when stopped."""

from __future__ import annotations

import signal
from pathlib import Path

import numpy as np
import pytest

from agents import train
from agents.models.store import LAST, read
from agents.runs.folders import LOCK
from agents.runs.remote_folders import packed, unpack, workplace
from agents.runs.seeds import seeds_of
from llmscale_env._cli import Slip
from tests.small_runs import SMALL_RUN, rows
from tests.waiting import command, ended, until

TINY = [
    *SMALL_RUN,
    "scenario.workload=chat",
    "total_timesteps=64",
    "env_threads=1",
    "ppo.n_steps=16",
    "ppo.net=[4]",
    "validation_every=32",
    "validation_episodes=1",
    "evaluation_episodes=2",
    "references=static",
]


def same_numbers(one: Path, two: Path) -> bool:
    names = ("validation.csv", "evaluation.csv", "summary.csv", "references.csv", "config.yaml")
    return all((one / name).read_bytes() == (two / name).read_bytes() for name in names)


def same_network(one: Path, two: Path) -> bool:
    """Whether the last models of two runs have the same weights."""
    mine, theirs = (read(run / LAST)["policy"] for run in (one, two))
    return all(np.array_equal(mine[key], theirs[key]) for key in mine)


@pytest.mark.slow
def test_seeds_side_by_side_are_those_one_by_one(tmp_path: Path, capsys):
    alone = tmp_path / "alone"
    assert train.main([*TINY, "seed=3", f"out={alone}"]) == 0
    together = tmp_path / "together"
    words = [*TINY, "seeds=3,4", f"out={together}", "workers=2"]
    assert train.main(words) == 0
    said = capsys.readouterr()
    three, four = (together / f"burst-multicast-ppo-seed{seed}" for seed in (3, 4))
    assert same_numbers(alone, three)
    assert same_network(alone, three)
    assert not same_network(alone, four)
    assert "seed 4: " in said.err
    assert "reward over 2 seeds" in said.out
    assert "run folder" in (three / "log.txt").read_text()
    # Nothing is left to do; a longer run goes on with both; without resume= they are in use.
    before = (three / "model_last.safetensors").stat().st_mtime_ns
    assert train.main([*words, "resume=true"]) == 0
    assert (three / "model_last.safetensors").stat().st_mtime_ns == before
    assert "seed3: is finished" in capsys.readouterr().err
    longer = [word.replace("total_timesteps=64", "total_timesteps=96") for word in words]
    assert train.main([*longer[:-1], "resume=true", "workers=1"]) == 0
    assert rows(four / "validation.csv")[-1]["timesteps"] == "96"
    assert train.main(words) == 2
    assert "is in use" in capsys.readouterr().err


def test_a_run_that_fails_leaves_the_others(tmp_path: Path, capsys, monkeypatch):
    import agents.learning.learner

    learn = agents.learning.learner.learn

    def fails(config, *rest):
        if config.seed == 0:
            raise RuntimeError("seed 0 is no good")
        return learn(config, *rest)

    monkeypatch.setattr(agents.learning.learner, "learn", fails)
    assert train.main([*TINY, "seeds=0..1", f"out={tmp_path}", "workers=1"]) == 1
    assert "seed0: RuntimeError: seed 0 is no good" in capsys.readouterr().err
    assert (tmp_path / "burst-multicast-ppo-seed1" / "learning_curve.png").is_file()


@pytest.mark.slow
def test_stopped_runs_are_saved_and_go_on(tmp_path: Path):
    words = [*TINY, "seeds=0,1", f"out={tmp_path}", "workers=2"]
    endless = [word.replace("total_timesteps=64", "total_timesteps=10000000") for word in words]
    folders = [tmp_path / f"burst-multicast-ppo-seed{seed}" for seed in (0, 1)]

    def both_learn() -> bool:
        return all((folder / "validation.csv").is_file() for folder in folders)

    with command("-m", "agents.train", *endless) as process:
        until(both_learn, "the first validation of both runs", process)
        process.send_signal(signal.SIGINT)
        _, errors = ended(process)
    assert process.returncode == 130, errors
    assert "the same command with resume=true" in errors
    assert "Traceback" not in errors
    for folder in folders:
        assert (folder / "model_last.safetensors").is_file()
        assert not [p for p in folder.iterdir() if p.name.startswith(".") and p.name != LOCK]


@pytest.mark.parametrize(
    "words, message",
    [
        (["seeds=0,0"], "seeds = '0,0': must be different integers"),
        (["seeds=a"], "seeds = 'a'"),
        (["seeds=0", "seed=1"], "seed and seeds: one of them"),
        (["workers=2"], "workers = '2': goes with seeds="),
        (["seeds=0", "launcher=slurm"], "launcher = 'slurm'"),
        (["seeds=0", "ppo.gama=1"], "ppo.gama"),
    ],
)
def test_slips_are_one_line(words: list[str], message: str, tmp_path: Path, capsys):
    assert train.main(["env=burst-multicast", f"out={tmp_path}", *words]) == 2
    errors = capsys.readouterr().err
    assert message in errors
    assert errors.startswith("train: ")
    assert errors.count("\n") == 1


def test_lists_of_seeds():
    assert seeds_of("4,0") == [4, 0]
    assert seeds_of("0..4") == [0, 1, 2, 3, 4]
    with pytest.raises(Slip):
        seeds_of("4..0")


def test_a_folder_travels(tmp_path: Path):
    home = tmp_path / "home"
    (home / "tb").mkdir(parents=True)
    (home / "a.txt").write_text("a")
    (home / "tb" / "b").write_bytes(b"\0b")
    (home / ".half").write_text("no")
    with workplace(None, packed(home)) as place:
        assert place.folder != home
        assert place.news() == {}  # the log is empty, and what came is known at home
        (place.folder / "tb" / "b").write_bytes(b"\0bb")
        print("said")
        news = place.news()
        assert news == {"tb/b": b"\0bb", "log.txt": b"said\n"}
        assert place.news() == {}
        gone = place.folder
    assert not gone.exists()
    unpack(news, home)
    assert (home / "tb" / "b").read_bytes() == b"\0bb"
    with workplace(home, {}) as place:
        print("more")
        assert place.folder == home
        assert place.news() == {}
    assert (home / "log.txt").read_text() == "said\nmore\n"
    with pytest.raises(ValueError, match="leads out"):
        unpack({"../x": b""}, home)
