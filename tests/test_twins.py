"""Twins of a cluster: told the true future they are the cluster; nothing is seen before it comes."""

from __future__ import annotations

import pickle
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from baselines import PolicyError, make_policy
from baselines.twin.futures import BIN_S, WORST, FutureDrawer, Kind, analog_paths, seconds_within
from baselines.twin.policy import STRATA
from llmscale_env.control.command import Command
from llmscale_env.control.metric_delay import DelayedCluster
from llmscale_env.control.reward import draw_requests
from llmscale_env.control.run import run_episode
from llmscale_env.control.simulation import ClusterSimulation
from llmscale_env.control.twins import Future, Given, Trial, Twins, unfinished
from llmscale_env.envs.reference import Reference
from llmscale_env.scenarios.load import load_scenario
from llmscale_env.scenarios.schema import Scenario
from llmscale_env.sim.compile import compile_cluster
from llmscale_env.sim.engine import make_engine
from llmscale_env.sim.picoseconds import seconds
from llmscale_env.workload.requests import COLUMNS, PS_PER_S, RequestTable
from tests.refusals import refuses
from tests.small_world import SMALL_WORLD

HORIZON_S = 600


def small(rate_scale: float, horizon_s: int = HORIZON_S) -> Scenario:
    changes = {"horizon_s": horizon_s, "workload.rate_scale": rate_scale}
    return load_scenario("mixed-slo-hours", **changes)


SCENARIO = small(0.25)


def begun(
    scenario: Scenario = SCENARIO, engine: str = "fast", seed: int = 0
) -> tuple[ClusterSimulation, RequestTable]:
    sim = ClusterSimulation(scenario, engine=engine)
    requests = draw_requests(scenario, np.random.default_rng(seed))
    sim.start(0, requests)
    return sim, requests


def rows(requests: RequestTable, first: int, last: int | None = None) -> RequestTable:
    columns: dict[str, Any] = {name: getattr(requests, name)[first:last] for name in COLUMNS}
    return replace(requests, past=None, history=None, **columns)


def truth(sim: ClusterSimulation, requests: RequestTable) -> Future:
    """What will come."""
    first = int(np.searchsorted(requests.arrival_ps, sim.engine.now_ps(0)))
    known = unfinished(sim.view(0)).request_id
    return Future(requests.output_tokens[known].astype(np.int64), rows(requests, first))


@pytest.mark.parametrize("engine", ["fast", "reference"])
def test_a_twin_that_knows_the_future_is_the_cluster(engine: str) -> None:
    sim, requests = begun(small(0.02 if engine == "reference" else 0.25), engine)
    twins = Twins(sim.scenario, engine=engine)
    rng = np.random.default_rng(1)
    for _ in range(8):
        order = Command(
            targets={"mixed": int(rng.integers(1, 5)), "interactive": int(rng.integers(0, 3))},
            batch_limits={"mixed": int(rng.integers(4, 60))},
        )
        other = Command(targets={"mixed": 1, "interactive": 0, "batch": 2})
        view = sim.view(0)
        before, pools = sim.engine.class_seen.copy(), sim.engine.pool_seen.copy()
        trials = [Trial(other, 0), Trial(order, 0)]
        played = twins.play(view, [truth(sim, requests)], trials, view.time_s + 30)
        sim.apply(0, order)
        sim.advance()
        late = sum(
            sim.engine.class_seen[name] - before[name]
            for name in ("rejected", "ttft_late", "itl_late")
        )
        assert np.array_equal(played.violations[1], np.asarray(late)[0])
        now = sim.engine.pool_seen
        gpu_s = (seconds(now, "gpu") - seconds(pools, "gpu"))[0].sum()
        assert played.gpu_s[1] == pytest.approx(gpu_s, abs=1e-9)
        assert played.loads[1] == (now["started"] - pools["started"]).sum()
        assert np.array_equal(played.pools[1], now[0])
        n_queues = len(sim.scenario.fleet.queues)
        assert np.array_equal(played.queues[1], sim.engine.queue_seen[0, :n_queues])
        assert not np.array_equal(played.pools[0], played.pools[1])


@pytest.mark.parametrize("engine", ["fast", "reference"])
def test_orders_given_since_a_view_are_met_by_its_twins(engine: str) -> None:
    """Metrics are two intervals late: with the true future, twins still become the cluster."""
    scenario = load_scenario(
        "mixed-slo-hours",
        **{"horizon_s": 600, "workload.rate_scale": 0.02 if engine == "reference" else 0.25},
        metric_delay_s=60,
    )
    sim, requests = begun(scenario, engine)
    behind = DelayedCluster(sim)
    behind.start(0, requests)
    twins, orders = Twins(scenario, engine=engine), list[Given]()
    for k in range(8):
        view, now_s = behind.sim.view(0), 30.0 * k
        order = Command(targets={"mixed": 1 + k % 4, "interactive": 1 - k % 2})
        trials = [Trial(Command(targets={"mixed": 6}), 0), Trial(order, 0)]
        pools, given = sim.engine.pool_seen.copy(), orders[-2:]
        future = truth(behind.sim, requests)
        played = twins.play(view, [future], trials, now_s + 30, at_s=now_s, given=given)
        orders.append(Given(now_s, order))
        sim.apply(0, order)
        sim.advance()
        behind.follow([order])
        gpu_s = seconds(sim.engine.pool_seen, "gpu") - seconds(pools, "gpu")
        assert played.gpu_s[1] == pytest.approx(gpu_s[0].sum(), abs=1e-9)
        assert np.array_equal(played.pools[1], sim.engine.pool_seen[0])
    view = behind.sim.view(0)
    for at_s, given in ((view.time_s - 1, []), (300.0, orders[:1]), (200.0, orders[-1:])):
        refuses("in order", twins.play, view, [future], trials, 330.0, at_s=at_s, given=given)


WRONG = {
    "fleet.pools.*.time_factor": 1.3,
    "fleet.pools.*.load_time_factor": 2.0,
    "fleet.pools.*.acquire_time_factor": 1.5,
}


@pytest.mark.parametrize("engine", ["fast", "reference"])
def test_twins_do_not_know_calibration_errors(engine: str) -> None:
    """From before anything runs, those of a slower cluster are the cluster as it was calibrated."""
    rate = 0.02 if engine == "reference" else 0.25
    wrong = load_scenario(
        "mixed-slo-hours", **{"horizon_s": 600, "workload.rate_scale": rate, **WRONG}
    )
    sim, requests = begun(wrong, engine)
    right, _ = begun(wrong.as_calibrated, engine)
    order = Command(targets={"mixed": 3, "interactive": 0})
    twins, future = Twins(wrong, engine=engine), [truth(sim, requests)]
    played = twins.play(sim.view(0), future, [Trial(order, 0)], 60.0)
    slow = twins.play(sim.view(0), future, [Trial(Command(), 0)], 60.0)
    for each in (sim, right):
        each.apply(0, order)
        while each.interval[0] < 2:
            each.advance()
    assert np.array_equal(played.pools[0], right.engine.pool_seen[0])
    assert not np.array_equal(played.pools[0], sim.engine.pool_seen[0])
    assert not np.array_equal(slow.pools[0], played.pools[0])


def test_engines_agree_on_twins_of_a_cluster_that_is_not_as_calibrated() -> None:
    """What runs and loads by the cluster's times ends by them; what begins after takes the others."""
    changes = {"horizon_s": 300, "workload.rate_scale": 0.05, **WRONG}
    scenario = load_scenario("mixed-slo-hours", **changes)
    found = []
    for engine in ("fast", "reference"):
        sim, requests = begun(scenario, engine)
        twins, seen = Twins(scenario, engine=engine), []
        for k in range(5):
            view = sim.view(0)
            trials = [Trial(Command(targets={"mixed": n, "interactive": 0}), 0) for n in (1, 4)]
            seen.append(twins.play(view, [truth(sim, requests)], trials, view.time_s + 60))
            sim.apply(0, Command(targets={"mixed": 1 + k % 3, "interactive": 0}))
            sim.advance()
        found.append(seen)
    for fast, reference in zip(*found, strict=True):
        for one, other in zip(fast, reference, strict=True):
            assert np.array_equal(one, other)


def test_twins_run_as_slowly_as_they_are_told() -> None:
    """With the true slowness of iterations, and loads as calibrated, they are the cluster."""
    slower = {"fleet.pools.*.time_factor": 1.3}
    scenario = load_scenario(SCENARIO, horizon_s=600, **slower)
    sim, requests = begun(scenario)
    twins = Twins(scenario, slowness=1.3)
    for k in range(6):
        view, order = sim.view(0), Command(targets={"mixed": 1 + k % 3, "interactive": 0})
        played = twins.play(view, [truth(sim, requests)], [Trial(order, 0)], view.time_s + 30)
        sim.apply(0, order)
        sim.advance()
        assert np.array_equal(played.pools[0], sim.engine.pool_seen[0])
    refuses("slowness", Twins, scenario, slowness=0)


@pytest.mark.parametrize("factor", [1.0, 1.2, 0.7])
def test_a_planner_learns_how_slow_its_cluster_is(factor: float) -> None:
    scenario = load_scenario(SCENARIO, **{"fleet.pools.*.time_factor": factor})
    policy: Any = make_policy(QUICK)
    run_episode(policy, scenario, 1)
    assert policy._player.slowness == pytest.approx(factor, rel=1e-3)


@pytest.mark.parametrize("interval_s", [33.3, 0.7, 20 / 3])
def test_late_metrics_and_intervals_that_binary_numbers_miss(interval_s: float) -> None:
    changes = {"horizon_s": 6 * interval_s, "metric_delay_s": interval_s}
    scenario = load_scenario(SCENARIO, control_interval_s=interval_s, **changes)
    assert run_episode(make_policy(QUICK), scenario, 0).summary["gpu_hours"] > 0


@pytest.mark.parametrize("factor", [3.0, 0.25])
def test_a_fetch_that_is_under_way_stays_so_in_twins(factor: float) -> None:
    """It ends when it really does, or after a whole fetch as calibrated if that is sooner."""
    scenario = load_scenario(
        "multi-model-queue",
        **{"fleet.pools.*.load_time_factor": factor, "workload.rate_scale": 0.5},
    )
    found = []
    for engine in ("fast", "reference"):
        sim, _ = begun(scenario, engine)
        policy = make_policy("qlm")
        policy.reset(scenario, 0)
        while not (sim.engine.weights_ready_ps(0) > sim.engine.now_ps(0)).any():
            sim.apply(0, policy.act(sim.view(0)))
            assert not sim.advance().any()
        twin = make_engine(compile_cluster(scenario, as_calibrated=True), 1, engine)
        twin.restore(0, sim.engine.save(0), sim.engine.spec)
        now, before, after = (
            sim.engine.now_ps(0),
            *(x.weights_ready_ps(0) for x in (sim.engine, twin)),
        )
        coming = before > now
        assert np.array_equal(before[~coming], after[~coming])
        for slot, llm in zip(*np.nonzero(coming), strict=True):
            pool = sim.engine.spec.pool_of_slot[slot]
            old, new = (
                next(swap.fetch_ps for swap in spec.pools[pool].served if swap.llm == llm)
                for spec in (sim.engine.spec, twin.spec)
            )
            whole, ready = now + new, int(before[slot, llm])
            begun_already = ready - old <= now
            expected = min(ready, whole) if begun_already else max(ready, whole + 1)
            assert after[slot, llm] == expected
            assert (after[slot, llm] - new <= now) == begun_already
        found.append(after)
    assert np.array_equal(found[0], found[1])


def test_only_times_may_differ_from_a_saved_cluster() -> None:
    others = {**WRONG, "fleet.max_gpus": 10}
    for engine in ("fast", "reference"):
        sim, _ = begun(engine=engine)
        for changes in (WRONG, others):
            spec = compile_cluster(load_scenario(SCENARIO, **changes), as_calibrated=True)
            refuses("another cluster", make_engine(spec, 1, engine).restore, 0, sim.engine.save(0))
        batch = make_engine(spec, 1, engine)
        refuses("more than times", batch.restore, 0, sim.engine.save(0), sim.engine.spec)


def test_trials_do_not_touch_the_cluster_or_each_other() -> None:
    sim, requests = begun()
    for _ in range(4):
        sim.advance()
    view, twins = sim.view(0), Twins(SCENARIO, threads=2)
    saved = sim.save(0)
    future = truth(sim, requests)
    orders = [Command(targets={"mixed": n}) for n in (1, 2, 3, 4, 5, 6)]
    together = twins.play(view, [future], [Trial(order, 0) for order in orders], view.time_s + 90)
    alone = [Twins(SCENARIO).play(view, [future], [Trial(o, 0)], view.time_s + 90) for o in orders]
    for k, one in enumerate(alone):
        assert one.gpu_s[0] == together.gpu_s[k]
        assert np.array_equal(one.pools[0], together.pools[k])
    after = sim.save(0)
    for name, array in saved["engine"].items():
        assert np.array_equal(array, after["engine"][name]), name


def test_arrivals_late_in_a_long_episode_are_seen_once() -> None:
    """Floats of seconds are not exact to the picosecond any more."""
    scenario = load_scenario(SMALL_WORLD, horizon_s=20_000, control_interval_s=33.3)
    step_ps = round(33.3 * PS_PER_S)
    one = draw_requests(small(0.01), np.random.default_rng(0))
    n = scenario.n_steps
    columns: dict[str, Any] = {x: np.full(n, getattr(one, x)[0]) for x in list(COLUMNS)[1:]}
    columns["slo_class"] = np.zeros(n, np.int64)
    times = step_ps * np.arange(n, dtype=np.int64)
    names = tuple(c.name for c in scenario.classes)
    table = replace(rows(one, 0, 0), arrival_ps=times, class_names=names, **columns)
    sim = ClusterSimulation(scenario)
    sim.start(0, table)
    while sim.interval[0] < n:
        sim.advance()
        assert len(sim.view(0).arrived) == sim.window(0).arrived.sum() == 1


def test_what_a_view_says_of_arrivals_is_what_came() -> None:
    sim, requests = begun()
    seen = [sim.view(0).arrived]
    for _ in range(5):
        sim.advance()
        seen.append(sim.view(0).arrived)
    n = int(np.searchsorted(requests.arrival_ps, 150 * PS_PER_S))
    assert len(seen[0]) == 0
    for name in ("arrival_s", "slo_class", "input_tokens", "predicted_output_tokens"):
        got = np.concatenate([getattr(each, name) for each in seen])
        assert np.array_equal(got, getattr(requests, name)[:n])


def test_a_future_must_name_every_length() -> None:
    sim, requests = begun()
    sim.advance()
    future = truth(sim, requests)
    short = future._replace(output_tokens=future.output_tokens[1:])
    early = future._replace(arrivals=rows(requests, 0))
    halves: Any = future.output_tokens + 0.5
    names = future._replace(arrivals=replace(future.arrivals, class_names=("a",) * 5))
    trials = [Trial(Command(), 0)]
    twins, view = Twins(SCENARIO), sim.view(0)
    for wrong, words in (
        (short, r"futures\[0\].output_tokens"),
        (future._replace(output_tokens=halves), "float64"),
        (names, r"futures\[0\].arrivals"),
        (early, r"arrival_ps\[0\]"),
    ):
        refuses(words, twins.play, view, [wrong], trials, 60.0)
    for until_s in (10.0, float("nan"), float("inf")):
        refuses("until_s", twins.play, view, [future], trials, until_s)
    for number in (-1, 1):
        refuses(r"trials\[0\].future", twins.play, view, [future], [Trial(Command(), number)], 60.0)
    command: Any = Command()
    refuses(r"trials\[0\]: .*Trial", twins.play, view, [future], [command], 60.0, error=TypeError)
    refuses("threads", Twins, SCENARIO, threads=0)
    refuses("'burst-multicast': .* flows", Twins, load_scenario("burst-multicast"))
    refuses("engine", Twins(SCENARIO, engine="reference").play, view, [future], trials, 60.0)
    sim.advance()
    refuses("view: of 30 s", twins.play, view, [future], trials, 60.0)


def test_trials_come_in_blocks_that_memory_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    sim, requests = begun()
    sim.advance()
    future = truth(sim, requests)
    trials = [Trial(Command(targets={"mixed": n}), 0) for n in (1, 2, 3, 4, 5)]
    whole = Twins(SCENARIO).play(sim.view(0), [future], trials, 90.0)
    monkeypatch.setattr("llmscale_env.control.twins._MOST_REQUESTS", 2 * len(requests) + 1)
    parts = Twins(SCENARIO).play(sim.view(0), [future], trials, 90.0)
    for one, other in zip(whole, parts, strict=True):
        assert np.array_equal(one, other)
    assert len(Twins(SCENARIO).play(sim.view(0), [future], [], 90.0).gpu_s) == 0


# ---- futures ----


def test_a_length_is_one_that_is_left_to_a_request() -> None:
    drawer = FutureDrawer(SCENARIO, 0, STRATA)
    outputs = np.repeat([10, 20, 30], 200)
    drawer._finished[0] = np.stack([np.full(600, 100), outputs], axis=1)
    n = np.ones(3000, np.int64)

    def drawn(emitted: int) -> list[int]:
        return sorted(set(drawer._lengths(0 * n, 100 * n, 500 * n, emitted * n).tolist()))

    assert drawn(0) == [10, 20, 30]
    assert drawn(10) == [20, 30]
    assert drawn(29) == [30]
    assert min(drawn(30)) == 31  # longer than all that have been seen: by the predicted length
    ten = drawer._lengths(0 * n, 100 * n, 500 * n, 10 * n)
    assert np.mean(ten == 20) == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize("interval_s", [5, 10, 15, 30])
def test_arrivals_are_counted_when_they_came(interval_s: int) -> None:
    scenario = load_scenario(SMALL_WORLD, horizon_s=120, control_interval_s=interval_s)
    sim, requests = begun(scenario)
    drawer: Any = FutureDrawer(scenario, 0, STRATA)
    drawer.see(sim.view(0))
    assert not drawer.knows
    while sim.interval[0] < scenario.n_steps:
        sim.advance()
        drawer.see(sim.view(0))
        if drawer.knows:
            drawn = [f.arrivals for f in drawer.draw(sim.view(0), sim.view(0).time_s + 60)]
            outputs = np.concatenate([t.output_tokens[t.slo_class == 0] for t in drawn])
            assert 80 < outputs.mean() < 500  # of about 194, before anybody has finished as well
    bins = requests.arrival_ps // (BIN_S * PS_PER_S)
    for c in range(2):
        came = np.bincount(bins[requests.slo_class == c], minlength=12)
        assert np.array_equal(drawer._past[0, c, :12], came)


def drawers(seed: int, n: int) -> tuple[FutureDrawer, list[Any]]:
    """A drawer that has seen `n` intervals of a busy window, and the rest of its table."""
    scenario = load_scenario("mixed-slo-hours")
    sim = ClusterSimulation(scenario)
    requests = draw_requests(scenario, np.random.default_rng(seed))
    sim.start(0, requests)
    drawer = FutureDrawer(scenario, seed, (1 / 64,) * 64)
    found = []
    for step in range(n):
        view = sim.view(0)
        drawer.see(view)
        if step >= 20 and step % 4 == 0:
            futures = drawer.draw(view, view.time_s + 180)
            found.append((view.time_s, [future.arrivals for future in futures]))
        sim.apply(0, Command(targets={"mixed": 14, "interactive": 0}))
        sim.advance()
    return drawer, [requests, found]


def worst(table: RequestTable, begin_s: float) -> float:
    """Most urgent tokens in any half minute of the three minutes after."""
    begin_ps = round(begin_s * PS_PER_S)
    first, last = np.searchsorted(table.arrival_ps, (begin_ps, begin_ps + 180 * PS_PER_S))
    part = rows(table, int(first), int(last))
    bins = (part.arrival_ps - begin_ps) // (BIN_S * PS_PER_S)
    tokens = np.where(part.slo_class == 0, part.input_tokens + 8 * part.output_tokens, 0)
    counted = np.bincount(bins, tokens, 18)
    return float(np.convolve(counted, np.ones(WORST), "valid").max())


@pytest.mark.slow
def test_futures_cover_what_happens_at_their_rate() -> None:
    inside, above = [], []
    for seed in range(4000, 4006):
        _, (requests, found) = drawers(seed, 230)
        for time_s, futures in found:
            drawn = [worst(table, time_s) for table in futures]
            low, high = np.quantile(drawn, (0.05, 0.95))
            inside.append(low <= worst(requests, time_s) <= high)
            above.append(worst(requests, time_s) > high)
    assert 0.8 <= np.mean(inside) <= 0.98
    assert np.mean(above) <= 0.15


def test_requests_come_within_bins_as_they_came() -> None:
    """Nine in a bin, all at its second 2: others are half a second away at most, in the bin or not."""
    rng = np.random.default_rng(0)
    seen = np.column_stack([np.repeat(np.arange(30.0), 9), np.full(270, 2.0)])
    counts = np.array([5, 0, 200])
    found = seconds_within(seen, 30, counts, rng)
    assert found.shape == (205,)
    assert found.min() >= 1.5
    assert found.max() <= 2.5
    # Full bins are like full ones: these had their requests at second 8.
    full = np.column_stack([np.repeat(np.arange(30.0, 60.0), 99), np.full(2970, 8.0)])
    both = seconds_within(np.concatenate([seen, full]), 60, np.array([10, 100]), rng)
    assert both[:10].max() < 3
    assert both[10:].min() > 7.9
    # What came in a bin that has not ended says nothing.
    anywhere = seconds_within(seen[:9], 0, np.array([1000]), rng)
    assert anywhere.min() < 1
    assert 9 < anywhere.max() < BIN_S


def test_long_prompts_come_when_all_requests_of_a_full_bin_do() -> None:
    """Quiet bins have 20 requests, anywhere; busy ones 80 short and 20 long prompts, all at second 5."""
    rng = np.random.default_rng(0)
    busy = np.arange(120) % 3 == 0
    counts = np.where(busy, 100, 20)
    bins = np.repeat(np.arange(120), counts)
    within = np.where(busy[bins], 5.0, BIN_S * rng.random(len(bins)))
    drawer: Any = FutureDrawer(SCENARIO, 0, STRATA)
    drawer._now, drawer._recent[0] = 120, np.column_stack([bins, within])
    short, long = (Kind(0, counts, np.full((9, 2), n), (n, n)) for n in (100, 4000))
    table = drawer._arrivals([short, long], [np.array([80.0]), np.array([20.0])], 0.0, BIN_S)
    is_long = table.input_tokens == 4000
    assert is_long.sum() == 20
    assert (abs(table.arrival_s - 5) < 0.1).all()


def test_bins_of_a_short_history_are_drawn_one_by_one() -> None:
    counts = np.array([[3.0, 0.0, 50.0, 7.0], [6.0, 0.0, 100.0, 14.0]])
    paths = analog_paths(counts, 12, 500, np.random.default_rng(0))
    assert paths.shape == (2, 500, 12)
    assert np.array_equal(paths[1], 2 * paths[0])  # both kinds at the same times
    assert sorted(set(paths[0].ravel().tolist())) == [0, 3, 7, 50]
    assert paths[0].mean() == pytest.approx(15, rel=0.1)


def test_kinds_that_come_together_do_so_in_futures() -> None:
    """A burst of one in ten bins, of both kinds or of one after the other."""
    rng = np.random.default_rng(0)
    bursts = np.where(rng.random(400) < 0.1, 90.0, 10.0)
    worst_together, worst_apart = (
        np.quantile(
            analog_paths(np.stack([bursts, other]), 12, 400, rng, spread=0).sum(axis=0).max(axis=1),
            0.5,
        )
        for other in (bursts, np.roll(bursts, 1))
    )
    assert worst_together > 1.3 * worst_apart


# ---- the planner ----

QUICK = "twin:look_ahead_s=60"


def decisions(result: Any) -> list[Any]:
    return [(d["targets"], d["batch_limits"]) for d in result.decisions]


def test_a_planner_sees_nothing_of_the_future() -> None:
    _, requests = begun()
    change_s = 300
    n = int(np.searchsorted(requests.arrival_ps, change_s * PS_PER_S))
    outputs = requests.output_tokens.copy()
    outputs[n:] = outputs[n:][::-1]
    first = run_episode(make_policy(QUICK), SCENARIO, 0, requests=requests)
    finished_s = first.requests["arrival_s"] + first.requests["e2e_s"]
    late = np.flatnonzero(~(finished_s.to_numpy() < change_s - 0.01))
    late = late[late < n]
    outputs[late] = np.minimum(outputs[late] + 50, 2000)
    arrivals = requests.arrival_ps.copy()
    arrivals[n:] = arrivals[n:] + (arrivals[-1] - arrivals[n:]) // 2
    changed = replace(requests, output_tokens=outputs, arrival_ps=arrivals)
    other = run_episode(make_policy(QUICK), SCENARIO, 0, requests=changed)
    k = change_s // 30 + 1
    assert decisions(first)[:k] == decisions(other)[:k]
    assert len(late) > 10


def test_a_planner_is_the_same_whatever_plays_its_twins() -> None:
    runs = [run_episode(make_policy(f"{QUICK},threads={n}"), SCENARIO, 3).decisions for n in (1, 2)]
    strip = [[{k: v for k, v in d.items() if k != "reason"} for d in run] for run in runs]
    assert strip[0] == strip[1]


@pytest.mark.parametrize("delay_s, told, mixed", [(0, False, 2), (60, False, 6), (60, True, 2)])
def test_a_planner_goes_by_what_it_sees_or_by_what_was_ordered_where_metrics_are_late(
    delay_s: int, told: bool, mixed: int
) -> None:
    """Its first order is for all six; somebody else orders two, and it may not change anything."""
    scenario = load_scenario(SCENARIO, metric_delay_s=delay_s)
    sim, requests = begun(scenario)
    behind = DelayedCluster(sim)
    behind.start(0, requests)
    policy = make_policy(f"{QUICK},inertia=1000000")
    policy.reset(scenario, 0)
    ordered, other = [], Command(targets={"interactive": 0, "mixed": 2})
    for _ in range(7):
        ordered.append(policy.act(behind.sim.view(0)).targets["mixed"])
        if told:
            policy.carried_out(other)
        sim.apply(0, other)
        sim.advance()
        behind.follow([other])
    assert (ordered[0], ordered[-1]) == (6, mixed)


def test_a_planner_that_was_shown_all_may_be_asked_once() -> None:
    class Led:
        """Twelve decisions of a fixed fleet, at the last of which planners say what they would order."""

        name = "led"

        def reset(self, scenario: Scenario, seed: int) -> None:
            self.planners = [make_policy(QUICK) for _ in range(3)]
            self.said: list[Command] = []
            for planner in self.planners:
                planner.reset(scenario, seed)

        def act(self, view: Any) -> Command:
            asked, shown, new = self.planners
            said = asked.act(view)
            if view.step < 11:
                shown.see(view)
            elif view.step == 11:
                self.said = [said, shown.act(view), new.act(view)]
            return Command(targets={"mixed": 1})

    led = Led()
    run_episode(led, small(1.0, 480), 1)
    counts = [command.targets["mixed"] for command in led.said]
    assert counts[0] > 1
    assert abs(counts[1] - counts[0]) <= 1
    costs = [float(command.reason.split()[-1]) for command in led.said]
    assert costs[1] == pytest.approx(costs[0], rel=0.5)


def test_a_planner_leaves_what_it_does_not_need_when_nothing_comes() -> None:
    """Nothing for a quarter of an hour: it shrinks; before that it knows nothing."""
    scenario = load_scenario(small(1e-9, 1200), history_s=0)
    decisions = run_episode(make_policy(QUICK), scenario, 0).decisions
    targets = [decision["targets"]["mixed"] for decision in decisions]
    assert set(targets[: int(900 / scenario.control_interval_s)]) == {targets[0]}
    assert targets[-1] < targets[0]


def test_a_copied_planner_makes_its_twins_again() -> None:
    """In the middle of an episode, too, whose iterations are a little slower than its twins' are."""
    scenario = load_scenario(SCENARIO, **{"fleet.pools.*.time_factor": 1.006})
    sim, _ = begun(scenario)
    policy: Any = make_policy(QUICK)
    policy.reset(scenario, 0)
    for step in range(12):
        view = sim.view(0)
        if step == 6:
            assert policy._player._twins is not None
            assert len(pickle.dumps(policy)) < 2_000_000
            copy = deepcopy(policy)
        command = policy.act(view)
        if step >= 6:
            assert copy.act(view) == command
        sim.apply(0, command)
        sim.advance()


@pytest.mark.parametrize(
    "word, message",
    [
        ("budget_ms=1", "budget_ms = 1: does nothing with rounds = 1"),
        ("late_price=1e308", "late_price"),
    ],
)
def test_what_planners_refuse(word: str, message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        make_policy(f"twin:{word}")


def test_a_planner_under_a_residual_head_is_told_what_was_ordered() -> None:
    scenario = load_scenario(SCENARIO, metric_delay_s=60)
    policy: Any = make_policy(QUICK)
    reference = Reference(policy, scenario)
    reference.reset(0)
    sim, _ = begun(scenario)
    reference.look(sim.view(0))
    more = Command(batch_limits={"mixed": 8}, load_source="ssd")
    given = reference.command(np.full(len(scenario.fleet.pools), 150), more)
    assert given.targets["mixed"] > reference.wanted[1]
    planner: Any = reference._policy
    assert planner._ordered == (given.targets["mixed"], 8)
    assert planner._player._said == [given]


def test_a_planner_scales_with_its_load() -> None:
    """Four times the load: more instances, and nearly everybody on time."""
    held, on_time = [], []
    for scale in (0.1, 0.4):
        result = run_episode(make_policy("twin"), small(scale, 480), 1)
        held.append(result.summary["gpu_hours"])
        on_time.append(result.summary["interactive/slo_attainment"])
    assert held[1] > 1.3 * held[0]
    assert min(on_time) > 0.9


def test_a_planner_finds_a_batch_limit_that_binds() -> None:
    """Long prompts stall who decodes: few at a time keep their gaps below the target."""
    code = {"name": "code", "llm": "llama-3.1-8b", "slo_class": "interactive"}
    arrivals = {"kind": "gamma", "cv": 5}
    stream = {**code, "arrivals": arrivals, "lengths": "azure-code", "rate_per_s": 12.0}
    scenario = load_scenario("mixed-slo-hours", horizon_s=600, workload={"streams": [stream]})
    on_time = []
    for binding in ("none", "false"):
        result = run_episode(make_policy(f"{QUICK},binding={binding}"), scenario, 0)
        limits = [d["batch_limits"]["mixed"] for d in result.decisions]
        assert (min(limits) < 32) == (binding == "none")
        on_time.append(result.summary["interactive/itl_attainment"])
    assert on_time[0] > on_time[1] + 0.02


@pytest.mark.slow
def test_a_planner_plans_on_the_readable_engine_as_well() -> None:
    tiny = small(0.01, 90)
    runs = [run_episode(make_policy(QUICK), tiny, 0, engine=e) for e in ("fast", "reference")]
    assert decisions(runs[0]) == decisions(runs[1])


@pytest.mark.parametrize("name", ["multi-model-queue", "burst-multicast", "placement"])
def test_a_planner_says_which_clusters_it_is_not_for(name: str) -> None:
    with pytest.raises(PolicyError, match="twin"):
        make_policy("twin").reset(load_scenario(name), 0)
