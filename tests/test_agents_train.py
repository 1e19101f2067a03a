"""A tiny training run from the command line: what it leaves behind, how it goes on, how it is compared."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml

from agents import evaluate, pictures, train
from agents.configuration.config import read_config
from agents.models.store import LAST, steps_of
from agents.runs.folders import LOCK
from agents.runs.stopping import terminating
from llmscale_env.sim.engine import make_engine
from tests.small_runs import SEEN, SMALL, SMALL_RUN, rows
from tests.small_world import SMALL_ID
from tests.waiting import command, ended, until

TINY = [
    *(*SMALL, *SEEN),
    "total_timesteps=256",
    "n_envs=4",
    "ppo.n_steps=16",
    "ppo.batch_size=32",
    "ppo.n_epochs=2",
    "ppo.net=[16]",
    "ppo.learning_rate=1e-5",
    "validation_every=128",
    "validation_episodes=2",
    "evaluation_episodes=3",
    "references=static,llumnix",
]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """A finished run, and what the command printed."""
    import contextlib
    import io

    folder = tmp_path_factory.mktemp("runs") / "run"
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        assert train.main([*TINY, f"out={folder}"]) == 0
    return SimpleNamespace(folder=folder, printed=printed.getvalue())


def test_a_run_leaves_everything_behind(trained: SimpleNamespace):
    folder = trained.folder
    for name in (
        "config.yaml",
        "run.json",
        "model_best.safetensors",
        "model_last.safetensors",
        "validation.csv",
        "references.csv",
        "evaluation.csv",
        "summary.csv",
        "learning_curve.png",
        "comparison.png",
        "episode.png",
    ):
        assert (folder / name).stat().st_size > 0, name
    hidden = {path.name for path in folder.iterdir() if path.name.startswith(".")}
    assert hidden <= {LOCK}  # nothing half done
    assert read_config(folder).total_timesteps == 256
    assert steps_of(folder / LAST) == 256
    (session,) = json.loads((folder / "run.json").read_text())["sessions"]
    assert session["command"].startswith("python -m agents.train env=burst-multicast")
    assert {"torch", "stable-baselines3", "gymnasium", "llmscale"} <= set(session["versions"])
    steps = [row["timesteps"] for row in rows(folder / "validation.csv")]
    assert steps == ["0", "0", "128", "128", "256", "256"]
    for policy in ("ppo", "static", "llumnix"):
        seeds = [r["seed"] for r in rows(folder / "evaluation.csv") if r["policy"] == policy]
        assert seeds == ["10000", "10001", "10002"]


@pytest.mark.slow
def test_processes_evaluate_the_same(trained: SimpleNamespace, tmp_path: Path):
    words = [*SMALL, f"policies={trained.folder},llumnix,static", "episodes=5"]
    for workers in ("1", "2"):
        out = tmp_path / workers
        assert evaluate.main([*words, f"out={out}", f"workers={workers}"]) == 0
    for name in ("evaluation.csv", "summary.csv"):
        assert (tmp_path / "1" / name).read_bytes() == (tmp_path / "2" / name).read_bytes()


def test_a_run_ends_with_the_table_and_the_places(trained: SimpleNamespace):
    lines = trained.printed.splitlines()
    assert lines[0].split()[0] == "policy"
    assert "reward [95 %]" in lines[0]
    assert [line.split()[0] for line in lines[2:5]] == ["ppo", "static", "llumnix"]
    for name in (
        "model_best.safetensors",
        "tb",
        "learning_curve.png",
        "comparison.png",
        "episode.png",
    ):
        assert any(line.endswith(str(trained.folder / name)) for line in lines)


def test_tensorboard_has_the_documented_tags(trained: SimpleNamespace, project_root: Path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    tags: dict[str, set[str]] = {}
    levels: dict[str, list[float]] = {}
    for run in (trained.folder / "tb").iterdir():
        events = EventAccumulator(str(run))
        events.Reload()
        tags[run.name] = set(events.Tags()["scalars"])
        levels[run.name] = [event.value for event in events.Scalars("llmscale/eval/reward")]
    assert set(tags) == {"ppo", "reference_static", "reference_llumnix"}
    # One chart shows learner and levels, since the tags are the same.
    assert {tag for tag in tags["ppo"] if "/eval/" in tag} == tags["reference_static"]
    assert levels["reference_static"][0] == levels["reference_static"][-1]
    for tag in (
        "rollout/ep_rew_mean",
        "train/approx_kl",
        "time/fps",
        "llmscale/reward/total",
        "llmscale/reward/gpu",
        "llmscale/reward/violations",
        "llmscale/fleet/queue/batch",
        "llmscale/fleet/mixed/batch_limit",
        "llmscale/episode/interactive/slo_attainment",
        "llmscale/episode/gpu_hours",
        "llmscale/eval/joint/slo_attainment",
    ):
        assert tag in tags["ppo"], tag
    page = (project_root / "docs" / "training.md").read_text()
    pools, classes = ("interactive", "mixed", "batch"), ("interactive", "batch")
    for tag in sorted(tags["ppo"]):
        forms = {tag}
        forms |= {tag.replace(f"/{pool}/", "/POOL/") for pool in pools}
        forms |= {tag.replace(f"/{c}/", "/CLASS/") for c in classes}
        forms |= {tag.replace("queue/batch", "queue/QUEUE")}
        assert any(f"`{form}`" in page for form in forms), f"docs/training.md lacks {tag}"


def test_a_model_is_named_after_its_folder(trained: SimpleNamespace, tmp_path: Path):
    """And after itself where the folder means another one; one that is alone can be loaded, too."""
    from agents.learned import LearnedPolicy

    folder = trained.folder
    assert LearnedPolicy(folder).name == folder.name
    assert LearnedPolicy(folder / "model_best.safetensors").name == folder.name
    assert LearnedPolicy(folder / LAST).name == f"{folder.name}-model_last"
    shutil.copy(folder / "model_best.safetensors", tmp_path / "model_copy.safetensors")
    shutil.copy(folder / "config.yaml", tmp_path)
    assert LearnedPolicy(tmp_path / "model_copy.safetensors").name == tmp_path.name


def test_validation_is_what_run_episode_says(trained: SimpleNamespace):
    """The curve, the table and a user's own call are one path."""
    from agents.configuration.environments import make_scenario
    from agents.learned import LearnedPolicy
    from llmscale_env.control.run import run_episode

    config = read_config(trained.folder)
    policy = LearnedPolicy(trained.folder)
    result = run_episode(policy, make_scenario(config), 10_001)
    (row,) = [
        r
        for r in rows(trained.folder / "evaluation.csv")
        if r["policy"] == "ppo" and r["seed"] == "10001"
    ]
    assert float(row["reward"]) == pytest.approx(result.summary["reward"], rel=1e-12)


def test_learned_policy_acts_as_the_network_does_in_the_environment(trained: SimpleNamespace):
    import gymnasium as gym

    from agents.configuration.environments import make_scenario
    from agents.learned import LearnedPolicy
    from llmscale_env.control.run import run_episode

    scenario = make_scenario(read_config(trained.folder))
    policy = LearnedPolicy(trained.folder)
    env = gym.make(SMALL_ID, scenario=scenario)
    obs, _ = env.reset(seed=5)
    total, done = 0.0, False
    while not done:
        obs, reward, _, done, _ = env.step(policy.model.predict(obs, deterministic=True)[0])
        total += float(reward)
    env.close()
    assert run_episode(policy, scenario, 5).summary["reward"] == pytest.approx(total, rel=1e-9)


def test_resume_goes_on_where_the_run_stopped(trained: SimpleNamespace, tmp_path: Path):
    folder = tmp_path / "run"
    shutil.copytree(trained.folder, folder)
    words = ["env=burst-multicast", f"out={folder}", "resume=true", "evaluation_episodes=0"]
    assert train.main([*words, "total_timesteps=384"]) == 0
    steps = [int(row["timesteps"]) for row in rows(folder / "validation.csv")]
    assert steps == [0, 0, 128, 128, 256, 256, 384, 384]
    assert steps_of(folder / LAST) == 384
    assert len(json.loads((folder / "run.json").read_text())["sessions"]) == 2
    before = [row for row in rows(folder / "validation.csv") if int(row["timesteps"]) <= 256]
    assert before == rows(trained.folder / "validation.csv")


def test_an_interrupt_before_anything_began_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def interrupted(*words: Any) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(train, "run", interrupted)
    assert train.main([*TINY, f"out={tmp_path / 'run'}"]) == 130
    said = capsys.readouterr().err
    assert "nothing had begun; give the same command again" in said
    assert "resume" not in said


def test_a_termination_interrupts_a_warm_start():
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), terminating():
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.slow
def test_an_interrupt_saves_whole_rollouts(tmp_path: Path):
    folder = tmp_path / "run"
    words = [w for w in TINY if not w.startswith(("total", "validation_every", "references"))]
    words += ["total_timesteps=10_000_000", "validation_every=64", "references=none"]
    path = folder / "validation.csv"

    def a_rollout_is_learnt() -> bool:
        return path.is_file() and int(rows(path)[-1]["timesteps"]) >= 64

    with command("-m", "agents.train", *words, f"out={folder}") as process:
        until(a_rollout_is_learnt, "the validation after the first rollout", process)
        process.send_signal(signal.SIGINT)
        said = ended(process)[1]
    assert process.returncode == 130, said
    assert f"resume=true out={folder}" in said
    assert "Traceback" not in said
    steps = steps_of(folder / LAST)
    assert steps >= 64
    assert steps % 64 == 0  # 4 environments, 16 steps: an unfinished rollout is not counted
    assert (
        train.main(
            [
                "env=burst-multicast",
                f"out={folder}",
                "resume=true",
                f"total_timesteps={steps + 64}",
                "evaluation_episodes=0",
            ]
        )
        == 0
    )
    assert steps_of(folder / LAST) == steps + 64


def test_the_same_seed_gives_the_same_run(trained: SimpleNamespace, tmp_path: Path):
    folder = tmp_path / "run"
    words = [w for w in TINY if not w.startswith(("evaluation_episodes", "references"))]
    words += ["evaluation_episodes=0", "references=none", "env_threads=2", f"out={folder}"]
    assert train.main(words) == 0
    assert rows(folder / "validation.csv") == rows(trained.folder / "validation.csv")


def test_the_reference_engine_trains_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    made = []

    def noted(spec: Any, n: int, engine: str) -> Any:
        made.append(engine)
        return make_engine(spec, n, engine)

    monkeypatch.setattr("llmscale_env.control.simulation.make_engine", noted)
    words = [*SMALL_RUN, "ppo.n_steps=8", "references=static"]
    words += ["total_timesteps=16", "validation_every=16", "validation_episodes=1"]
    for engine in ("fast", "reference"):
        out = tmp_path / engine
        assert train.main([*words, "evaluation_episodes=1", f"engine={engine}", f"out={out}"]) == 0
        assert set(made) == {engine}
        made.clear()
    for name in ("references.csv", "validation.csv", "evaluation.csv"):
        assert rows(tmp_path / "fast" / name) == rows(tmp_path / "reference" / name)


def test_an_untrained_network_leaves_things_as_they_are(trained: SimpleNamespace):
    first = [r for r in rows(trained.folder / "validation.csv") if r["timesteps"] == "0"]
    static = [r for r in rows(trained.folder / "references.csv") if r["policy"] == "static"]
    for mine, level in zip(first, static, strict=True):
        assert float(mine["scaling_actions"]) == 0
        assert float(mine["gpu_hours"]) == pytest.approx(float(level["gpu_hours"]))
        assert mine["joint/on_time"] == level["joint/on_time"]


# ---- evaluation ----


def test_evaluate_compares_on_the_same_seeds(
    trained: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    words = [*SMALL, f"policies=static,{trained.folder},hpa", "episodes=4", "seed=77"]
    assert evaluate.main([*words, f"out={tmp_path}"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[2:5]] == ["static", "run", "hpa"]
    found = rows(tmp_path / "evaluation.csv")
    rewards = {
        name: np.array([float(r["reward"]) for r in found if r["policy"] == name])
        for name in ("static", "run", "hpa")
    }
    assert [r["seed"] for r in found] == ["77", "78", "79", "80"] * 3
    summary = {row["policy"]: row for row in rows(tmp_path / "summary.csv")}
    for name, mine in rewards.items():
        assert float(summary[name]["reward"]) == pytest.approx(mine.mean())
        difference = float(summary[name]["reward/difference"])
        assert difference == pytest.approx((mine - rewards["static"]).mean(), abs=1e-9)
    arrivals = {n: [r["joint/arrivals"] for r in found if r["policy"] == n] for n in rewards}
    assert arrivals["static"] == arrivals["run"] == arrivals["hpa"]
    assert (tmp_path / "comparison.png").stat().st_size > 0


def test_evaluate_takes_a_quantile(
    trained: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    asked = f"policies={trained.folder},{trained.folder}:quantile=0.999"
    assert evaluate.main([*SMALL, asked, "episodes=2", f"out={tmp_path}"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[2:4]] == ["run", "run:quantile=0.999"]
    usual, cautious = (float(row["gpu_hours"]) for row in rows(tmp_path / "summary.csv"))
    assert cautious > usual
    for text in ("0", "1", "much"):
        line = told(capsys, *SMALL, f"policies={trained.folder}:quantile={text}")
        assert f"quantile = '{text}': must be a number above 0 and below 1" in line


def told(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The one line that a slip is answered with."""
    assert evaluate.main([*words]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    (line,) = printed.err.splitlines()
    return line


def test_a_missing_model_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "empty").mkdir()
    out = tmp_path / "out"
    line = told(capsys, *SMALL, f"policies=static,{tmp_path}/empty", f"out={out}")
    assert "none of model_best.safetensors, model_last.safetensors" in line
    line = told(capsys, *SMALL, f"policies=static,{tmp_path}/no.zip", f"out={out}")
    assert "there is no such file" in line
    assert not out.exists()


def test_a_model_without_its_configuration_is_an_error(
    trained: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    shutil.copy(trained.folder / "model_best.safetensors", tmp_path / "model.safetensors")
    assert "config.yaml" in told(capsys, *SMALL, f"policies={tmp_path}/model.safetensors")


def test_a_corrupt_model_is_an_error(
    trained: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    shutil.copy(trained.folder / "config.yaml", tmp_path)
    path = tmp_path / "model_best.safetensors"
    path.write_bytes(b"not a model")
    assert "cannot be read" in told(capsys, *SMALL, f"policies={tmp_path}")
    whole = (trained.folder / "model_best.safetensors").read_bytes()
    path.write_bytes(whole[:-10])
    assert "cannot be read" in told(capsys, *SMALL, f"policies={tmp_path}")
    path.write_bytes(whole)
    config = tmp_path / "config.yaml"
    config.write_text(config.read_text().replace("  - 16", "  - 8"))
    assert "does not go together with config.yaml" in told(capsys, *SMALL, f"policies={tmp_path}")
    config.write_text(config.read_text().replace("  - 8", "  - 65536\n" * 16))
    assert "fewer weights than the network" in told(capsys, *SMALL, f"policies={tmp_path}")


@pytest.mark.parametrize("key", ["forecaster", "reference", "observation", "action"])
def test_a_configuration_that_names_what_there_is_not_is_an_error(
    key: str, trained: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    shutil.copy(trained.folder / "model_best.safetensors", tmp_path)
    config = yaml.safe_load((trained.folder / "config.yaml").read_text())
    config[key] = ["os.system"] if key in ("observation", "action") else "os.system"
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    said = told(capsys, *SMALL, f"policies={tmp_path}")
    assert f"model '{tmp_path}/model_best.safetensors': its configuration: " in said
    assert "os.system" in said


def test_a_zip_is_converted_once_somebody_trusts_it(
    trained: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """Nothing of a zip is executed before; what comes of it is the same network."""
    from agents import convert
    from agents.learned import LearnedPolicy
    from agents.models.store import BEST, read

    shutil.copy(trained.folder / "config.yaml", tmp_path)
    LearnedPolicy(trained.folder).model.save(tmp_path / "model_best.zip")
    assert "python -m agents.convert model=" in told(capsys, *SMALL, f"policies={tmp_path}")
    assert convert.main([f"model={tmp_path}"]) == 2
    assert "trust=true" in capsys.readouterr().err
    assert not (tmp_path / BEST).exists()
    assert convert.main([f"model={tmp_path}", "trust=true"]) == 0
    printed = capsys.readouterr()
    assert "warning" in printed.err
    mine, theirs = read(tmp_path / BEST)["policy"], read(trained.folder / BEST)["policy"]
    assert all(np.array_equal(mine[name], theirs[name]) for name in theirs)
    (tmp_path / BEST).write_bytes(b"of a later run")
    assert convert.main([f"model={tmp_path}", "trust=true"]) == 2
    assert "is there already" in capsys.readouterr().err
    assert (tmp_path / BEST).read_bytes() == b"of a later run"


def test_a_trusted_zip_of_something_else_is_told_in_a_line(
    trained: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    from stable_baselines3 import PPO

    from agents import convert

    shutil.copy(trained.folder / "config.yaml", tmp_path)
    PPO("MlpPolicy", "CartPole-v1", n_steps=2, batch_size=2).save(tmp_path / "model_best.zip")
    assert convert.main([f"model={tmp_path}", "trust=true"]) == 2
    (line,) = [s for s in capsys.readouterr().err.splitlines() if s.startswith("convert: ")]
    assert "model_best.zip" in line


def test_loading_a_model_executes_nothing(trained: SimpleNamespace, tmp_path: Path):
    """A pickle that would leave a trace, under every name that a model file may have."""
    import pickle
    import zipfile

    from agents.learned import LearnedPolicy
    from agents.models.store import BEST, ModelError

    class Trap:
        def __reduce__(self) -> Any:
            return (Path.touch, (tmp_path / "executed",))

    shutil.copy(trained.folder / "config.yaml", tmp_path)
    (tmp_path / BEST).write_bytes(pickle.dumps(Trap()))
    with pytest.raises(ModelError, match="cannot be read"):
        LearnedPolicy(tmp_path)
    for name in (BEST, "model.zip"):
        with zipfile.ZipFile(tmp_path / name, "w") as file:
            file.writestr("data", pickle.dumps(Trap()))
            file.writestr("policy.pth", pickle.dumps(Trap()))
        with pytest.raises(ModelError, match="runs whatever its author wrote into it"):
            LearnedPolicy(tmp_path / name)
    assert not (tmp_path / "executed").exists()


def test_a_model_of_another_space_is_an_error(
    trained: SimpleNamespace, capsys: pytest.CaptureFixture[str]
):
    line = told(
        capsys,
        *SMALL,
        "scenario.fleet.pools.batch.max_batch=64",
        "scenario.fleet.pools.batch.batch_limit=64",
        f"policies={trained.folder}",
    )
    assert "was trained with actions MultiDiscrete[11, 11, 11, 8, 8, 8, 5, 3]" in line
    assert "has MultiDiscrete[11, 11, 11, 8, 8, 4, 5, 3]" in line


def test_pictures_of_a_run(
    trained: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert pictures.main([f"run={trained.folder}", f"out={tmp_path}"]) == 0
    for line in capsys.readouterr().out.splitlines():
        assert Path(line).read_bytes().startswith(b"\x89PNG")
    assert {path.name for path in tmp_path.iterdir()} == {"learning_curve.png", "episode.png"}
