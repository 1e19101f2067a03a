"""A run that was stopped or killed and taken up again ends as the one that was not: the same bytes."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import llmscale_env
from agents import train
from agents.learning.callbacks import RolloutTags
from agents.models.store import BEST, LAST, ModelError, read, write
from agents.train import plan
from llmscale_env._cli import Slip
from tests.small_runs import SEEN, UNWATCHED, WORLD
from tests.waiting import command, ended

TINY = [
    *(*WORLD, *SEEN),
    "scenario.horizon_s=100",
    "scenario.workload=chat",
    "scenario.fleet.max_gpus=4",
    "scenario.fleet.pools.interactive.initial_instances=2",
    "scenario.fleet.pools.mixed.initial_instances=1",
    "n_envs=4",
    "total_timesteps=96",
    "validation_every=24",
    *UNWATCHED,
]
NETS = {
    "ppo": ["n_steps=6", "batch_size=12", "n_epochs=2", "net=[8]"],
    "maskable-ppo": ["n_steps=6", "batch_size=12", "n_epochs=2", "net=[8]"],
    "recurrent-ppo": ["n_steps=6", "batch_size=12", "n_epochs=2", "net=[8]", "lstm_size=4"],
}
"""Six steps a rollout, ten an episode: rollouts begin in the midst of episodes."""

CASES: dict[str, tuple[str, list[str]]] = {
    "plain": ("ppo", []),
    "memory": ("recurrent-ppo", []),
    "masks, noise that is held, logits that grow": (
        "maskable-ppo",
        ["noise_hold_steps=3", "sharpen=2"],
    ),
    "prices that move": ("ppo", ["lagrangian.attainment=0.99"]),
    "a copy and its anchor": (
        "ppo",
        ["warm_start.policy=llumnix", "warm_start.episodes=1", "warm_start.kl_steps=96"],
    ),
    "scenarios that are drawn, in stages": (
        "ppo",
        [
            "randomise.ranges.workload.rate_scale=[0.5, 2.0]",
            "randomise.groups=2",
            "randomise.episodes=1",
            "curriculum=[{steps: 50, overrides: {workload.rate_scale: 0.5}}]",
        ],
    ),
    "the same arrivals": ("ppo", ["same_arrivals=2", "group_baseline=true"]),
}


class Killed(Exception):
    """Stands for the end of the process."""


def words_of(case: str) -> list[str]:
    agent, more = CASES[case]
    return [*TINY, f"agent={agent}", *(f"{agent}.{word}" for word in NETS[agent]), *more]


def run(words: list[str], folder: Path, resumes: bool, heard: Any = None) -> None:
    more = [f"out={folder}", *(["resume=true"] if resumes else [])]
    config, folder, goes_on = plan([*words, *more])
    train.run(config, train.check(config), folder, words, goes_on, heard)


@pytest.mark.parametrize("case", CASES)
def test_it_ends_as_the_run_that_was_not_interrupted(case: str, tmp_path: Path):
    words = words_of(case)
    run(words, tmp_path / "whole", False)
    asked: list[int] = []

    def interrupt(steps: int, rows: Any) -> None:
        """Killed after the validation at 24 steps; told to stop after the one at 48."""
        asked.append(steps)
        if steps == 24:
            raise Killed
        if steps == 48:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Killed):
        run(words, tmp_path / "parts", False, interrupt)
    with pytest.raises(KeyboardInterrupt):
        run(words, tmp_path / "parts", True, interrupt)
    run(words, tmp_path / "parts", True, interrupt)
    assert asked == [0, 24, 48, 72, 96]
    for name in (LAST, BEST, "validation.csv"):
        whole, parts = (tmp_path / run / name for run in ("whole", "parts"))
        assert whole.read_bytes() == parts.read_bytes(), name
    assert events(tmp_path / "whole", CASES[case][0]) == events(tmp_path / "parts", CASES[case][0])


def events(folder: Path, run: str) -> dict[str, list[tuple[int, str]]]:
    """What TensorBoard shows of a run: by tag, (step, value); without speeds."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    # Sessions of one second and process are in no order by name.
    files = sorted((folder / "tb" / run).iterdir(), key=lambda path: path.stat().st_mtime_ns)
    for number, path in enumerate(files):
        path.rename(path.with_name(f"events.out.tfevents.{number:010}"))
    shown = EventAccumulator(str(folder / "tb" / run), {"scalars": 0}).Reload()
    tags = [tag for tag in shown.Tags()["scalars"] if not tag.startswith("time/")]
    assert "rollout/ep_rew_mean" in tags or run.startswith("reference_")
    return {tag: [(e.step, str(e.value)) for e in shown.Scalars(tag)] for tag in tags}


def test_tensorboard_shows_repeated_steps_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Killed two rollouts after its last validation; a level line is as long as the run."""
    words = [
        w for w in words_of("plain") if w.split("=")[0] not in ("validation_every", "references")
    ]
    words += ["validation_every=48", "references=static"]
    run(words, tmp_path / "whole", False)

    class Dies(RolloutTags):
        def _on_rollout_end(self) -> None:
            super()._on_rollout_end()
            if self.num_timesteps == 96:
                raise Killed

    with monkeypatch.context() as patched:
        patched.setattr("agents.learning.learner.RolloutTags", Dies)
        with pytest.raises(Killed):
            run(words, tmp_path / "parts", False)
    run(words, tmp_path / "parts", True)
    for name in ("ppo", "reference_static"):
        assert events(tmp_path / "whole", name) == events(tmp_path / "parts", name)


def test_a_finished_run_that_is_prolonged_is_a_longer_one(tmp_path: Path):
    """With a constant learning rate nothing else depends on how long the run was meant to be."""
    words = [*words_of("plain"), "ppo.learning_rate=1e-3", "ppo.learning_rate_end=1e-3"]
    short = ["total_timesteps=48" if word.startswith("total_") else word for word in words]
    run(words, tmp_path / "whole", False)
    run(short, tmp_path / "parts", False)
    run(words, tmp_path / "parts", True)
    assert (tmp_path / "whole" / LAST).read_bytes() == (tmp_path / "parts" / LAST).read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("attempt", range(3))
def test_killing_it_at_random_moments_changes_nothing(attempt: int, tmp_path: Path):
    words = words_of("plain")
    run(words, tmp_path / "whole", False)
    parts, rng = tmp_path / "parts", random.Random(attempt)
    killed = 0
    while True:
        goes_on = [f"out={parts}"] + (["resume=true"] if (parts / "config.yaml").exists() else [])
        with command("-m", "agents.train", *words, *goes_on) as process:
            end = time.monotonic() + rng.uniform(2.0, 12.0) + killed
            while process.poll() is None and time.monotonic() < end:
                time.sleep(0.01)
            if process.poll() is None:
                process.kill()
                killed += 1
                process.communicate()  # and closes its pipes
                shutil.rmtree(parts / "tb", ignore_errors=True)
                continue
            said = ended(process)[1]
            assert process.returncode == 0, said
            break
    assert (tmp_path / "whole" / LAST).read_bytes() == (parts / LAST).read_bytes()
    assert (tmp_path / "whole" / BEST).read_bytes() == (parts / BEST).read_bytes()


def test_what_cannot_be_gone_on_with_is_told(tmp_path: Path):
    words = words_of("plain")
    run(words, tmp_path / "run", False)
    path = tmp_path / "run" / LAST
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(Slip, match="cannot be read: damaged"):
        run(words, tmp_path / "run", True)
    shutil.copy(tmp_path / "run" / BEST, path)  # a network, but no run
    with pytest.raises(Slip, match="cannot be resumed: an older version made it"):
        run(words, tmp_path / "run", True)
    path.unlink()
    with pytest.raises(Slip, match="is gone, so the run cannot go on"):
        run(words, tmp_path / "run", True)


def _spoil(*path: str, value: Any) -> Any:
    def spoil(run: dict[str, Any]) -> None:
        for part in path[:-1]:
            run = run[part]
        run[path[-1]] = value

    return spoil


SPOILT = {
    "generator": _spoil("random", "torch", value=np.zeros(3, np.uint8)),
    "words": _spoil("random", "python", value=[3, [2**70] * 625, None]),
    "moments": _spoil("optimiser", "state", "0", "exp_avg", value=np.zeros(3, np.float32)),
    "no moment": _spoil("optimiser", "state", "0", value={}),
    "no weights": _spoil("optimiser", "state", "99", value={}),
    "NaN": _spoil("optimiser", "state", "1", "step", value=np.float32([np.nan]).reshape(())),
    "updates": _spoil("updates", value="x"),
    "episodes": _spoil("episodes", value=[1]),
    "starts": _spoil("starts", value=np.zeros(2, bool)),
    "best": _spoil("validation", "best", value=["x"]),
    "last": _spoil("validation", "last", value="x"),
    "validation": _spoil("validation", value={}),
}


def test_where_no_run_can_be_is_told_before_anything_is_learnt(tmp_path: Path):
    """torch takes an optimiser of another network, and fails at the first update."""
    words = words_of("plain")
    short = ["total_timesteps=24" if word.startswith("total_") else word for word in words]
    run(short, tmp_path / "run", False)
    path = tmp_path / "run" / LAST
    for name, spoil in SPOILT.items():
        contents = read(path)
        spoil(contents["run"])
        (tmp_path / name).mkdir()
        shutil.copy(tmp_path / "run" / "config.yaml", tmp_path / name)
        write(tmp_path / name / LAST, contents)
        with pytest.raises(ModelError, match="no run can go on from it"):
            run(words, tmp_path / name, True)


def old_run(folder: Path, *names: str) -> Path:
    """A run folder as older versions left it, with these models."""
    folder.mkdir(parents=True)
    config, _, _ = plan([*words_of("plain"), f"out={folder.parent / 'none'}"])
    (folder / "config.yaml").write_text(config.to_yaml())
    (folder / "validation.csv").write_text("timesteps\n24\n")
    for name in names:
        if name.endswith(".zip"):
            (folder / name).write_bytes(b"PK\x03\x04")
        else:
            write(folder / name, {"timesteps": 24})
    return folder


@pytest.mark.parametrize("names", [("model_last.zip",), ("model_last.zip", LAST)])
def test_a_run_of_an_older_version_is_named_as_one(names: tuple[str, ...], tmp_path: Path):
    """Also when its zip was converted."""
    folder = old_run(tmp_path / "run", *names)
    with pytest.raises(Slip, match=r"cannot be resumed: an older version made it.*out=FOLDER"):
        plan([f"out={folder}", "resume=true"])


def test_a_bare_resume_passes_over_runs_that_cannot_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(train, "RUNS", tmp_path)
    words = ["env=burst-multicast", "resume=true"]
    name = "burst-multicast-ppo-seed"
    good = old_run(tmp_path / f"{name}0", LAST)
    write(good / LAST, {"timesteps": 24, "run": {}})
    for file in good.iterdir():
        os.utime(file, (1, 1))
    old_run(tmp_path / f"{name}1", "model_last.zip")
    old_run(tmp_path / f"{name}2", "model_last.zip", LAST)
    assert plan(words)[1] == good
    told = capsys.readouterr().err
    assert told.count("passed over") == 2
    assert f"{name}1" in told
    assert f"{name}2" in told
    shutil.rmtree(good)
    with pytest.raises(Slip, match="no unfinished run"):
        plan(words)


def test_a_run_that_is_killed_in_the_last_comparison_is_unfinished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Also one that was finished before, of which tables and pictures are there, and is prolonged."""
    monkeypatch.setattr(train, "RUNS", tmp_path)
    folder, bare = tmp_path / "burst-multicast-ppo-seed0", ["env=burst-multicast", "resume=true"]
    words = [word for word in words_of("plain") if word.split("=")[0] not in ("total_timesteps",)]
    run([*words, "total_timesteps=24"], folder, False)
    assert train.is_finished(folder)

    def kill(*_: Any) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr("agents.evaluate.draw_episode", kill)
        with pytest.raises(Killed):
            run([*words, "total_timesteps=48"], folder, True)
    assert plan(bare)[1] == folder
    run([*words, "total_timesteps=48"], folder, True)
    with pytest.raises(Slip, match="no unfinished run"):
        plan(bare)


def test_a_run_that_is_killed_before_its_first_model_begins_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(train, "RUNS", tmp_path)
    folder = tmp_path / "burst-multicast-ppo-seed0"

    def kill(*_: Any) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr("agents.learning.learner.make_learner", kill)
        with pytest.raises(Killed):
            run(words_of("plain"), folder, False)
    config, found, goes_on = plan(["env=burst-multicast", "resume=true", "total_timesteps=24"])
    assert (found, goes_on) == (folder, True)
    assert train.run(config, train.check(config), found, [], goes_on) == 0
    assert "it begins anew" in capsys.readouterr().err


def test_what_a_kill_left_of_models_is_cleared_away(tmp_path: Path):
    words = words_of("plain")
    words = ["total_timesteps=24" if word.startswith("total_") else word for word in words]
    run(words, tmp_path / "run", False)
    part = tmp_path / "run" / ".model_last.a1b2c3_d.safetensors"
    part.write_bytes(b"half")
    mine = tmp_path / "run" / ".notes.txt"
    mine.write_text("of the user")
    run(words, tmp_path / "run", True)
    assert not part.exists()
    assert mine.exists()


@pytest.mark.parametrize("steps", [24, 96])
def test_learning_that_goes_astray_is_told_in_a_line(
    steps: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """In the last update or another; the models that are there stay as they were."""
    words = [word for word in words_of("plain") if not word.startswith("total_")]
    words += [
        "ppo.learning_rate=1e30",
        "ppo.learning_rate_end=1e30",
        f"total_timesteps={steps}",
        f"out={tmp_path / 'run'}",
    ]
    assert train.main(words) == 2
    assert "train: learning went astray: after 24 steps" in capsys.readouterr().err
    assert read(tmp_path / "run" / LAST)["timesteps"] == 0


def test_the_best_model_so_far_outlives_a_lost_table(tmp_path: Path):
    """The best score stands with the last model, so a table that was cut cannot make a worse one the best."""
    words = words_of("plain")
    run(words, tmp_path / "run", False)
    best = read(tmp_path / "run" / LAST)["run"]["validation"]["best"]
    (tmp_path / "run" / "validation.csv").unlink()
    longer = ["total_timesteps=120" if word.startswith("total_") else word for word in words]
    run(longer, tmp_path / "run", True)
    assert read(tmp_path / "run" / LAST)["run"]["validation"]["best"] >= best


PLAYED = ("mixed-slo-hours", "placement-per-request", "burst-multicast", "multi-model-queue")


@pytest.mark.parametrize("name", [*PLAYED, "placement", "multi-region"])
def test_episodes_that_are_played_again_are_where_they_were(name: str):
    (entry,) = (entry for entry in llmscale_env.ENVIRONMENTS if entry.short_name == name)

    def make() -> Any:
        return gym.make_vec(entry.id, num_envs=3).unwrapped

    one = make()
    one.reset(seed=[5, 6, 7])
    one.action_space.seed(0)
    for step in range(7):
        if step == 4:  # so that the episodes are at different steps
            one.reset(seed=[8, 9, 10], options={"reset_mask": np.array([False, True, False])})
        seen = one.step(one.action_space.sample())[0]
    other = make()
    np.testing.assert_array_equal(other.replay(one.so_far()), seen)
    for _ in range(5):
        action = one.action_space.sample()
        for mine, theirs in zip(one.step(action)[:4], other.step(action)[:4], strict=True):
            np.testing.assert_array_equal(mine, theirs)
    with pytest.raises(ValueError, match="episodes: 2 of them, must be 3"):
        other.replay(one.so_far()[:2])
    broken = [{**episode, "generator": {"a": 1}} for episode in one.so_far()]
    with pytest.raises(ValueError, match=r"episodes\[0\]: its generator has no state"):
        other.replay(broken)
    one.close()
    other.close()


@pytest.mark.parametrize(
    "change, told",
    [
        (5, r"episodes\[0\] = 5: must be from `so_far`"),
        ({"seed": "x"}, "seed = 'x': must be an integer or None"),
        ({"generator": ("state", {"state": 2**200, "inc": 1})}, "its generator has no state"),
        ({"generator": ("has_uint32", 2**40)}, "its generator has no state"),
    ],
)
def test_what_is_no_episode_is_not_played(change: Any, told: str):
    envs: Any = gym.make_vec("llmscale/Placement-v1", num_envs=1).unwrapped
    envs.reset(seed=1)
    (episode,) = envs.so_far()
    if isinstance(change, dict):
        for key, value in change.items():
            part = {**episode[key], value[0]: value[1]} if key == "generator" else value
            episode = {**episode, key: part}
    else:
        episode = change
    with pytest.raises(ValueError, match=told):
        envs.replay([episode])
    envs.close()


def test_memory_does_not_grow_where_states_are_restored_again_and_again():
    """As tree search does; the actions that would play an episode again are not kept then."""
    env: Any = gym.make("llmscale/Placement-v1").unwrapped
    env.reset(seed=1)
    action = env.action_space.sample()
    for _ in range(5):
        env.step(action)
    saved = env.save_state()
    kept = []
    for _ in range(30):
        env.step(action)
        env.restore_state(saved)
        kept.append(len(env.core._taken))
    assert kept == [0] * 30
    env.close()


def test_a_restored_episode_is_not_played_again_wrongly():
    envs: Any = gym.make_vec("llmscale/Placement-v1", num_envs=2).unwrapped
    envs.reset(seed=1)
    envs.action_space.seed(0)
    saved = envs.core.save(0)
    for _ in range(3):
        envs.step(envs.action_space.sample())
    envs.core.restore(0, saved)
    with pytest.raises(
        ValueError, match="episode 0: cannot be played again, since it was restored"
    ):
        envs.so_far()
    assert len(envs.core.so_far(1)["actions"]) == 3
    envs.reset(seed=2, options={"reset_mask": np.array([True, False])})
    seen = envs.step(envs.action_space.sample())[0]
    assert [len(episode["actions"]) for episode in envs.so_far()] == [1, 4]
    other: Any = gym.make_vec("llmscale/Placement-v1", num_envs=2).unwrapped
    np.testing.assert_array_equal(other.replay(envs.so_far()), seen)
    envs.close()
    other.close()
