"""A cluster of two machines, as far as Ray can tell: the same results as with processes, from both."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import agents.tune
import baselines.tune
from agents import evaluate, train
from agents.models.store import LAST, steps_of
from experiments.harness.catalogue import load
from experiments.harness.results import ROWS
from experiments.run import RunsFailed, make_result
from llmscale_env._cli import Slip
from llmscale_env._spread import Launcher, OtherCode, WorkerLost, crew, spread
from llmscale_env._spread.on_ray import import_ray
from tests import ray_calls
from tests.small_world import SMALL_WORLD
from tests.test_agents_seeds import TINY as TRAIN
from tests.test_agents_seeds import same_network, same_numbers
from tests.test_harness_run import ENTRY
from tests.waiting import PATIENCE_S

ray = pytest.importorskip("ray", reason="Ray is not installed (extra `ray`)")


SMALL = [word for word in TRAIN if word.startswith("scenario")]


def names_below(folder: Path) -> set[str]:
    """Names of a run's files; TensorBoard's have the time and the machine in theirs."""
    found = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    return {name for name in found if "tfevents" not in name}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two nodes with a processor each; nothing of them is left afterwards."""
    import_ray()
    from ray.cluster_utils import Cluster

    memory = 80 * 2**20
    head = {"num_cpus": 1, "object_store_memory": memory, "include_dashboard": False}
    started = Cluster(initialize_head=True, head_node_args=head)
    started.add_node(wait=False, num_cpus=1, object_store_memory=memory)
    started.wait_for_nodes(PATIENCE_S)
    yield started
    ray.shutdown()
    started.shutdown()


@pytest.fixture
def on_ray(cluster: Any) -> Launcher:
    return Launcher("ray", None, cluster.address)


# One test: each test process that gets one of several would start a cluster of its own.
@pytest.mark.slow
def test_a_cluster_of_two_machines(cluster: Any, on_ray: Launcher, subtests: Any, tmp_path: Path):
    with subtests.test("calls are answered by both machines"):
        (seen := tmp_path / "seen").mkdir()
        found = dict(spread(ray_calls.where, [(x, str(seen)) for x in range(8)], on_ray))
        assert {key: value for key, (value, _) in found.items()} == {x: x * x for x in range(8)}
        assert len({node for _, node in found.values()}) == 2
        assert not ray.is_initialized()

    with subtests.test("what a call raises is raised"), pytest.raises(ValueError, match="13 is no"):
        list(spread(ray_calls.where, [(1, str(seen)), (13, str(seen))], on_ray))

    with subtests.test("calls tell and are answered"):
        ray_calls.assert_told_and_answered(on_ray)

    with subtests.test("a process that dies is told"), crew(on_ray, 1, hears=print) as workers:
        workers.submit(0, ray_calls.die)
        with pytest.raises(WorkerLost, match="ended without an answer"):
            list(workers)

    with (
        subtests.test("an answer that cannot be sent"),
        pytest.raises(OtherCode, match="not send its answer"),
    ):
        list(spread(ray_calls.lock, [()], on_ray))

    # From here on one connection for all commands: its processes have imported what they need.
    words = ["launcher=ray", f"ray.address={cluster.address}"]
    ray.init(address=cluster.address, log_to_driver=False, logging_level="error")

    with subtests.test("experiments"):
        experiment = load(ENTRY)
        mine = experiment.settings("quick", {"log": str(tmp_path / "log"), "trouble": "raise"})
        with pytest.raises(RunsFailed, match=r"2 of 4 runs failed.*factor 3 is no good"):
            make_result(experiment, "quick", mine, tmp_path / "ray", "command", launcher=on_ray)
        (tmp_path / "log.mended").touch()
        made = make_result(experiment, "quick", mine, tmp_path / "ray", "command", launcher=on_ray)
        assert len((tmp_path / "log").read_text().splitlines()) == 4  # finished ones are kept
        here = make_result(experiment, "quick", mine, tmp_path / "here", "command")
        assert (made.folder / ROWS).read_bytes() == (here.folder / ROWS).read_bytes()

    with subtests.test("training seeds, whose folders come home"):
        train_words = [*TRAIN, "seeds=0,1"]
        assert train.main([*train_words, f"out={tmp_path / 'away'}", *words]) == 0
        assert train.main([*train_words, f"out={tmp_path / 'home'}", "workers=1"]) == 0
        for seed in (0, 1):
            away, home = (
                tmp_path / w / f"burst-multicast-ppo-seed{seed}" for w in ("away", "home")
            )
            assert same_numbers(away, home)
            assert same_network(away, home)
            assert names_below(away) == names_below(home)

    with subtests.test("they go on from what is at home"):
        longer = [w.replace("total_timesteps=64", "total_timesteps=96") for w in train_words]
        again = [*longer, f"out={tmp_path / 'away'}", "resume=true"]
        assert train.main([*again, *words]) == 0
        sessions = json.loads((away / "run.json").read_text())["sessions"]
        assert len(sessions) == 2
        assert steps_of(away / LAST) == 96

    with subtests.test("evaluation, of a model that lies here alone"):
        made_by = ["env=burst-multicast", *SMALL, f"policies={home},llumnix", "episodes=3"]
        for out, where in (("on-ray", words), ("in-one", ["workers=1"])):
            assert evaluate.main([*made_by, f"out={tmp_path / out}", *where]) == 0
        one, two = (tmp_path / out / "evaluation.csv" for out in ("on-ray", "in-one"))
        assert one.read_bytes() == two.read_bytes()

    with subtests.test("search for a heuristic's settings"):
        asked = ["policy=keda", f"env={SMALL_WORLD}", "seeds=2", "first_seeds=1", "budget_steps=60"]
        asked += ["cache=none", *(word for word in SMALL if word.startswith("scenario."))]
        for out, where in (("keda-ray", words), ("keda", ["workers=1"])):
            assert baselines.tune.main([*asked, f"out={tmp_path / out}", *where]) == 0
        found = [yaml.safe_load((tmp_path / out).read_text()) for out in ("keda-ray", "keda")]
        assert [each.pop("command")[-4:] for each in found] == ["-ray", "keda"]
        assert found[0] == found[1]

    with subtests.test("search for hyperparameters"):
        pytest.importorskip("optuna")
        refused = ("total_timesteps=", "evaluation_episodes=", "references=")
        mine = [word for word in TRAIN if not word.startswith(refused)]
        tried = [*mine, "trials=2", "parallel=2", "steps=64"]
        for out, where in (("tune-ray", words), ("tune", ["workers=1"])):
            assert agents.tune.main([*tried, f"out={tmp_path / out}", *where]) == 0
        one, two = (tmp_path / out / "trials.csv" for out in ("tune-ray", "tune"))
        assert one.read_bytes() == two.read_bytes()
        assert (tmp_path / "tune-ray" / "trial-001" / "model_best.safetensors").is_file()


def test_no_cluster_is_one_line(monkeypatch: pytest.MonkeyPatch):
    ray.shutdown()
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    with (
        pytest.raises(Slip, match=r"'127.0.0.1:1': no Ray cluster answers there") as slip,
        crew(Launcher("ray")),
    ):
        pass
    assert "\n" not in str(slip.value)
