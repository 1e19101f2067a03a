"""Both engines behind `sim.engine`: the same episodes, observations, rewards and results, bit for bit."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from baselines import make_policy
from llmscale_env.control.run import run_episode, run_streamed
from llmscale_env.control.simulation import ClusterSimulation
from llmscale_env.scenarios import load_scenario
from llmscale_env.sim.engine import ENGINES, make_engine
from llmscale_env.sim.orders import Orders, PoolOrders
from tests.border_cases import counts, differences, run_through, shown
from tests.engine_cases import make_case
from tests.env_kinds import DAY, KINDS, MIXED, PLACEMENT, QUEUE, REGION, Kind
from tests.refusals import refuses
from tests.region_cases import make_region_case
from tests.small_world import SMALL_WORLD
from tests.split_cases import make_split_case
from tests.weight_cases import make_weight_case

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*is out of date:DeprecationWarning"),
]

HOUR = {**REGION.short, "horizon_s": 3600, "workload.rate_scale": 0.01}
"""The readable engine looks at every signal of a queue manager."""

SHORTER = {DAY.id: {**DAY.short, "horizon_s": 150, "workload.rate_scale": 0.1}, REGION.id: HOUR}
SHORT = tuple(kind._replace(short=SHORTER.get(kind.id, kind.short)) for kind in KINDS)
each = pytest.mark.parametrize("kind", SHORT, ids=lambda kind: kind.id.partition("/")[2])

MAKERS = {
    "whole": make_case,
    "qlm": partial(make_case, qlm=True),
    "split": make_split_case,
    "weights": make_weight_case,
    "live": partial(make_weight_case, live=True),
    "regions": make_region_case,
}


# ---- generated cases ----


def compare(kind: str, seed: int) -> None:
    case = MAKERS[kind](seed)
    one, other = (
        run_through(make_engine(case.spec, 1, name), case, in_pieces=seed % 2 == 1)
        for name in ENGINES
    )
    found = next(differences(one, other), None)
    assert found is None, f"{kind} {seed}, fast / reference: {found}"


@pytest.mark.parametrize("kind", MAKERS)
def test_engines_show_the_same(kind: str) -> None:
    """All reads and all counts, before and after the commands of every stop."""
    for seed in range(10):
        compare(kind, seed)


@pytest.mark.slow
@pytest.mark.parametrize("kind", MAKERS)
def test_engines_show_the_same_in_more_cases(kind: str) -> None:
    for seed in range(10, 250):
        compare(kind, seed)


def test_a_difference_is_found() -> None:
    case = make_case(3)
    one, other = (run_through(make_engine(case.spec), case) for _ in range(2))
    assert list(differences(one, other)) == []
    at = next(k for k, (_, name, _) in enumerate(other) if name == "class_seen")
    other[at][2]["arrived"][0] += 1
    assert "class_seen.arrived[0]" in next(differences(one, other))


# ---- environments ----


def unlike(one: Any, other: Any, where: str = "") -> Iterator[str]:
    """Where two observations or infos differ."""
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            yield from unlike(one[key], other[key], f"{where}/{key}")
        return
    a, b = np.asarray(one), np.asarray(other)
    if a.dtype.kind == "O":
        same = len(a) == len(b) and all(
            (x is None and y is None) or np.array_equal(x, y) for x, y in zip(a, b, strict=True)
        )
    else:
        same = np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
    if not same:
        yield f"{where}: {one} / {other}"


def drawn(env: Any, masks: np.ndarray, rng: np.random.Generator) -> Any:
    """An action among those that are possible."""
    widths = env.core.codec.decoder.nvec
    rows = []
    for mask in np.atleast_2d(masks):
        parts = np.split(mask, np.cumsum(widths)[:-1])
        rows.append([int(rng.choice(np.flatnonzero(part))) for part in parts])
    actions = np.array(rows)
    space = env.action_space
    if isinstance(space, gym.spaces.Discrete):
        return actions[0, 0]
    return actions.reshape(space.shape)


@each
def test_environments_show_the_same(kind: Kind) -> None:
    envs = [gym.make(kind.id, overrides=kind.short, engine=name).unwrapped for name in ENGINES]
    rng = np.random.default_rng(3)
    steps = [env.reset(seed=3) for env in envs]
    over = False
    while not over:
        assert next(unlike(*(dict(enumerate(step)) for step in steps)), None) is None
        action = drawn(envs[0], steps[0][-1]["action_mask"], rng)
        steps = [env.step(action) for env in envs]
        over = steps[0][3]
    assert next(unlike(*(dict(enumerate(step)) for step in steps)), None) is None
    assert "episode_summary" in steps[0][-1]


@pytest.mark.parametrize("kind", [QUEUE], ids=lambda kind: kind.id[9:])
def test_vectorised_environments_show_the_same(kind: Kind) -> None:
    envs = [
        gym.make_vec(
            kind.id,
            num_envs=2,
            vectorization_mode="vector_entry_point",
            overrides=kind.short,
            engine=name,
            threads=2,
        )
        for name in ENGINES
    ]
    rng = np.random.default_rng(4)
    steps = [env.reset(seed=4) for env in envs]
    for _ in range(13):  # the second episodes begin
        assert next(unlike(*(dict(enumerate(step)) for step in steps)), None) is None
        actions = drawn(envs[0], steps[0][-1]["action_mask"], rng)
        steps = [env.step(actions) for env in envs]


def test_metrics_that_come_late_are_the_same() -> None:
    """Commands one by one in place of orders, and a second simulation behind the first."""
    short = {**MIXED.short, "metric_delay_s": 20.0}
    envs = [gym.make(MIXED.id, overrides=short, engine=name).unwrapped for name in ENGINES]
    rng = np.random.default_rng(5)
    steps = [env.reset(seed=5) for env in envs]
    for _ in range(6):
        action = drawn(envs[0], steps[0][-1]["action_mask"], rng)
        steps = [env.step(action) for env in envs]
        assert next(unlike(*(dict(enumerate(step)) for step in steps)), None) is None


# ---- policies ----

EPISODES = [
    ("chiron", SMALL_WORLD, MIXED.short),
    ("static", SMALL_WORLD, {**MIXED.short, "horizon_s": 60, "metric_delay_s": 20.0}),
    ("aladdin", "placement", PLACEMENT.short),
    ("aladdin", "placement-per-request", KINDS[4].short),
    ("blitzscale", "burst-multicast", KINDS[5].short),
    ("qlm", "multi-model-queue", QUEUE.short),
    ("lt-ua", "multi-region", HOUR),
]


@pytest.mark.parametrize("policy,name,short", EPISODES, ids=[p for p, *_ in EPISODES])
def test_policies_run_the_same(policy: str, name: str, short: dict[str, Any]) -> None:
    scenario = load_scenario(name, **short)
    one, other = (run_episode(make_policy(policy), scenario, 1, engine=e) for e in ENGINES)
    assert one.decisions == other.decisions
    assert next(unlike(one.summary, other.summary), None) is None
    assert one.requests.equals(other.requests)
    assert one.series.equals(other.series)


def test_streamed_episodes_are_the_same() -> None:
    scenario = load_scenario(SMALL_WORLD, **MIXED.short)
    one, other = (
        run_streamed(make_policy("static"), scenario, 1, chunk_s=30.0, engine=e) for e in ENGINES
    )
    assert next(unlike(one.summary, other.summary), None) is None
    assert one.series.equals(other.series)


# ---- saving ----


@pytest.mark.parametrize("kind", MAKERS)
def test_a_saved_episode_goes_on_the_same(kind: str) -> None:
    """Saved, pickled and restored in another batch, it shows the same, then and later."""
    case = MAKERS[kind](7)
    engine = make_engine(case.spec, 1, "reference")
    run_through(engine, case, doublings=0)
    engine.close_windows(0, 1)
    other = make_engine(case.spec, 2, "reference")
    other.restore(1, pickle.loads(pickle.dumps(engine.save(0))))
    both = [(engine, 0), (other, 1), (copy.deepcopy(engine), 0)]
    for at_ps in (engine.now_ps(0), engine.now_ps(0) + 10_000):
        looks = []
        for one, e in both:
            one.advance(e, at_ps)
            one.close_windows(e, e + 1)
            several = (*counts(one, e), *shown(one, e))
            looks.append([("", name, value) for name, value in several])
        for look in looks[1:]:
            assert next(differences(looks[0], look), None) is None


def test_what_is_no_saved_episode_is_refused() -> None:
    case, other = make_case(1), make_case(2)
    engine = make_engine(case.spec, 1, "reference")
    engine.reset(0, case.requests)
    refuses("no saved episode", lambda: engine.restore(0, make_engine(case.spec).save(0)))
    with pytest.raises(ValueError, match="another cluster"):
        engine.restore(0, make_engine(other.spec, 1, "reference").save(0))
    assert len(engine.results(0)) == len(case.requests)


def test_environments_fork() -> None:
    env = gym.make(MIXED.id, overrides=MIXED.short, engine="reference").unwrapped
    env.reset(seed=1)
    for _ in range(3):
        env.step(MIXED.action)
    fork = env.fork()
    for _ in range(3):
        one, other = env.step(MIXED.action), fork.step(MIXED.action)
        assert next(unlike(dict(enumerate(one)), dict(enumerate(other))), None) is None


# ---- what is refused ----


def test_another_engine_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"engine = 'simpy': must be one of \['fast', 'reference'\]"
    ):
        gym.make(MIXED.id, engine="simpy")


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize(
    "change,said",
    [
        ({"targets": np.full((1, 3), 10**6)}, r"targets\[0, 0\] = 1000000"),
        ({"limits": np.full((1, 3), 10**6)}, r"limits\[0, 0\] = 1000000"),
        ({"sources": np.full((1, 3), 9)}, r"sources\[0, 0\] = 9"),
        ({"targets": np.full((2, 3), -1)}, r"targets: of shape \(2, 3\)"),
    ],
)
def test_orders_that_are_none_are_refused(name: str, change: dict[str, Any], said: str) -> None:
    simulation = ClusterSimulation(load_scenario(SMALL_WORLD, **MIXED.short), engine=name)
    n_pools, n_classes = len(simulation.scenario.fleet.pools), len(simulation.scenario.classes)
    assert n_pools == 3
    pools = PoolOrders.none(1, n_pools, n_classes)
    orders = Orders(pools=replace(pools, **change))
    refuses(said, simulation.order, orders)
