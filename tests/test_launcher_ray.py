"""A cluster of two machines, as far as Ray can tell: the same results as with processes, from both."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from llmscale_env._cli import Slip
from llmscale_env._spread import Launcher, OtherCode, WorkerLost, crew, import_ray, spread
from tests import ray_calls

ray = pytest.importorskip("ray", reason="Ray is not installed (extra `ray`)")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two nodes with a processor each; nothing of them is left afterwards."""
    import_ray()
    from ray.cluster_utils import Cluster

    memory = 80 * 2**20
    head = {"num_cpus": 1, "object_store_memory": memory, "include_dashboard": False}
    started = Cluster(initialize_head=True, head_node_args=head)
    started.add_node(num_cpus=1, object_store_memory=memory)
    yield started
    started.shutdown()


@pytest.fixture
def on_ray(cluster: Any) -> Launcher:
    return Launcher("ray", None, cluster.address)


# One test: each test process that gets one of several would start a cluster of its own.
def test_a_cluster_of_two_machines(on_ray: Launcher, subtests: Any):
    with subtests.test("calls are answered by both machines"):
        found = dict(spread(ray_calls.where, [(x,) for x in range(8)], on_ray))
        assert {key: value for key, (value, _) in found.items()} == {x: x * x for x in range(8)}
        assert len({node for _, node in found.values()}) == 2
        assert not ray.is_initialized()

    with subtests.test("what a call raises is raised"), pytest.raises(ValueError, match="13 is no"):
        list(spread(ray_calls.where, [(1,), (13,)], on_ray))

    with subtests.test("calls tell and are answered"):
        heard: dict[str, list[int]] = {"a": [], "b": []}

        def hears(key: str, number: int) -> str:
            heard[key].append(number)
            return "stop" if (key, number) == ("b", 2) else f"{key}{number}"

        with crew(on_ray, 2, hears) as workers:
            workers.submit("a", ray_calls.count, 4)
            workers.submit("b", ray_calls.count, 4)
            assert dict(workers) == {"a": ["a0", "a1", "a2", "a3"], "b": ["b0", "b1", "stop"]}
        assert heard == {"a": [0, 1, 2, 3], "b": [0, 1, 2]}

    with (
        subtests.test("a process that dies is told"),
        pytest.raises(WorkerLost),
        crew(on_ray, 1, hears=print) as workers,
    ):
        workers.submit(0, ray_calls.die)
        list(workers)

    with (
        subtests.test("an answer that cannot be sent"),
        pytest.raises(OtherCode, match="not send its answer"),
    ):
        list(spread(ray_calls.lock, [()], on_ray))


def test_no_cluster_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Any):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))  # whatever runs here is not found
    with pytest.raises(Slip, match="no Ray cluster answers there") as slip, crew(Launcher("ray")):
        pass
    assert "\n" not in str(slip.value)
