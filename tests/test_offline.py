"""Recorded decisions: Minari reads them back, and what is learnt from them alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from agents.configuration.environments import make_codec
from agents.learning.cloning import Recorder
from agents.offline import __main__ as command
from agents.offline import data, learners
from baselines import make_policy
from llmscale_env.control.run import run_episode
from llmscale_env.scenarios import load_scenario

pytest.importorskip("minari")
pytest.importorskip("h5py")
torch = pytest.importorskip("torch")


SHORT = {"horizon_s": 600.0}
ENV = "mixed-slo-hours"
STATIC, RANDOM = (f"llmscale/{ENV}/{name}-v0" for name in ("static-tuned", "random"))


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Networks so small only wait for each other's threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two small datasets."""
    place = tmp_path_factory.mktemp("datasets")
    for policy in ("static-tuned", "random"):
        data.record(ENV, policy, 2, 0, place, SHORT)
    return place


def test_minari_reads_datasets_back(folder: Path, monkeypatch: pytest.MonkeyPatch):
    import minari

    monkeypatch.setenv("MINARI_DATASETS_PATH", str(folder))
    assert data.names(folder) == sorted([STATIC, RANDOM])
    assert set(minari.list_local_datasets()) == {STATIC, RANDOM}
    for name in (STATIC, RANDOM):
        dataset = minari.load_dataset(name)
        assert dataset.total_episodes == 2
        env = dataset.recover_environment()
        assert (env.observation_space, env.action_space) == (
            dataset.observation_space,
            dataset.action_space,
        )
        for episode in dataset.iterate_episodes():
            assert len(episode.actions) == len(episode.rewards) == 20
            assert len(episode.observations) == 21
            assert all(o in dataset.observation_space for o in episode.observations)
            assert all(a in dataset.action_space for a in episode.actions)
            assert episode.truncations.tolist() == [False] * 19 + [True]
            masks = episode.infos["action_mask"][:-1].astype(bool)
            starts = np.cumsum(env.action_space.nvec) - env.action_space.nvec
            chosen = np.take_along_axis(masks, starts + episode.actions, axis=1)
            assert chosen.all()


def test_what_was_recorded_happens_again(folder: Path, monkeypatch: pytest.MonkeyPatch):
    """The environment that the dataset names gives the same rewards for the same seed and actions."""
    import minari

    monkeypatch.setenv("MINARI_DATASETS_PATH", str(folder))
    dataset = minari.load_dataset(RANDOM)
    env = dataset.recover_environment()
    (seed,) = [m["seed"] for m in dataset.storage.get_episode_metadata([1])]
    (episode,) = dataset.iterate_episodes([1])
    env.reset(seed=int(seed))
    assert [env.step(action)[1] for action in episode.actions] == episode.rewards.tolist()


def test_transitions_follow_each_other(folder: Path):
    found = data.load(folder, [STATIC, RANDOM])
    assert len(found.rewards) == 2 * 2 * 20
    inside = np.ones(len(found.rewards) - 1, bool)
    inside[19::20] = False
    assert np.array_equal(found.following[:-1][inside], found.observations[1:][inside])
    assert found.masks.shape == (len(found.rewards), found.nvec.sum())


def test_a_copy_of_the_static_policy_does_what_it_does(folder: Path):
    scenario = load_scenario(ENV, **SHORT)
    seen = data.load(folder, [STATIC])
    actor = learners.learn(seen, "bc", 50, 0)
    copy = learners.OfflinePolicy(actor, make_codec(ENV, scenario), "bc")
    for observation, mask, action in zip(seen.observations, seen.masks, seen.actions, strict=True):
        assert copy.choose(torch.as_tensor(observation), mask).tolist() == action.tolist()
    as_actions = Recorder(make_policy("static-tuned"), make_codec(ENV, scenario), scenario)
    rewards = [run_episode(policy, scenario, 3).summary["reward"] for policy in (copy, as_actions)]
    assert rewards[0] == rewards[1]


def test_a_better_action_that_is_rare_is_found_by_values_and_not_by_copying():
    rng = np.random.default_rng(0)
    actions = (rng.random((2000, 1)) < 0.2).astype(np.int64)
    observations = rng.normal(size=(2000, 3)).astype(np.float32)
    seen = data.Transitions(
        observations=observations,
        following=np.roll(observations, -1, axis=0),
        actions=actions,
        masks=np.ones((2000, 2), bool),
        rewards=0.1 * actions[:, 0].astype(float),
        nvec=np.array([2]),
    )
    for method, best in (("bc", 0), ("iql", 1)):
        actor = learners.learn(seen, method, 600, 0)
        with torch.no_grad():
            chosen = actor(torch.as_tensor(observations)).argmax(-1).numpy()
        assert np.mean(chosen == best) > 0.95, method


def test_learning_repeats_itself(folder: Path):
    seen = data.load(folder, [RANDOM])
    one, other = (learners.learn(seen, "iql", 20, 4).state_dict() for _ in range(2))
    assert all(bool((one[key] == other[key]).all()) for key in one)


def test_the_commands(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    words = ["policies=static", "episodes=1", "scenario.horizon_s=300"]
    assert command.main(["make", *words, f"out={tmp_path / 'd'}"]) == 0
    assert "static-v0  1 episodes  mean reward" in capsys.readouterr().out
    learn = ["learn", f"data={folder}", "datasets=static-tuned", "method=bc", "steps=20"]
    out = ["episodes=1", "policies=static-tuned", "scenario.horizon_s=300", f"out={tmp_path / 'o'}"]
    assert command.main([*learn, *out]) == 0
    assert capsys.readouterr().out.startswith("policy")
    assert (tmp_path / "o" / "evaluation.csv").is_file()


@pytest.mark.parametrize(
    "words, message",
    [
        (["mke"], "unknown command 'mke'"),
        (["make"], "out= is missing"),
        (["make", "out=x", "policies=sttic"], "unknown policy 'sttic'"),
        (["make", "out=x", "policies=random,random"], "given twice"),
        (["learn"], "data= is missing"),
        (["learn", "data=nowhere"], "holds no dataset"),
        (["learn", "data=nowhere", "method=cql"], "method = 'cql'"),
    ],
)
def test_slips_are_one_line(words: list[str], message: str, refused):
    assert message in refused(command.main, words)


def test_a_dataset_is_not_written_over(folder: Path, refused):
    words = ["make", "policies=random", "episodes=1", f"out={folder}"]
    assert "holds llmscale/mixed-slo-hours/random-v0 already" in refused(command.main, words)


def test_datasets_that_are_asked_for_must_be_there(folder: Path, refused):
    assert "there is no" in refused(command.main, ["learn", f"data={folder}", "datasets=chiron"])
