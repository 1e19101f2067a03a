"""Calibration errors and late metrics: what everybody plans by is not what is, or not any more."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from baselines import make_policy
from llmscale_env.control.command import Command
from llmscale_env.control.metric_delay import DelayedCluster
from llmscale_env.control.reward import draw_requests
from llmscale_env.control.run import run_episode, run_streamed
from llmscale_env.control.simulation import ClusterSimulation
from llmscale_env.scenarios import ScenarioError, load_scenario
from llmscale_env.sim.compile import compile_cluster, pool_load_times_s, pool_times, ps
from llmscale_env.sim.fast import FastEngine
from llmscale_env.sim.reference import ReferenceEngine
from tests.env_kinds import SHORT, assert_equal_to_singles, assert_replayed
from tests.small_world import SMALL_WORLD, SmallEnv, SmallVectorEnv

WRONG = {
    "fleet.pools.*.time_factor": 1.2,
    "fleet.pools.*.load_time_factor": 0.8,
    "fleet.pools.*.acquire_time_factor": 1.5,
}


def short(**changes):
    return load_scenario(SMALL_WORLD, **SHORT, **changes)


# ---- calibration errors ----


def test_factors_of_one_leave_the_cluster_as_it_is():
    plain, given = (compile_cluster(s) for s in (short(), short(**dict.fromkeys(WRONG, 1.0))))
    assert len(plain.profiles) == len(given.profiles)
    for a, b in zip(plain.profiles, given.profiles, strict=True):
        assert all((np.asarray(vars(a)[k]) == np.asarray(vars(b)[k])).all() for k in vars(a))
    assert plain.pools == given.pools


def test_iterations_and_loads_take_so_many_times_as_long():
    plain, wrong = (compile_cluster(s) for s in (short(), short(**WRONG)))
    pools = (plain.pools[1], wrong.pools[1])
    one, two = (s.profiles[p.profile] for s, p in zip((plain, wrong), pools, strict=True))
    for name in ("decode_base_ps", "prefill_knot_ps", "mixed_base_ps"):
        np.testing.assert_allclose(getattr(two, name), 1.2 * getattr(one, name), atol=1)
    assert two.kv_capacity_tokens == one.kv_capacity_tokens
    np.testing.assert_allclose(pools[1].load_ps, 0.8 * np.array(pools[0].load_ps), atol=1)
    later = {"fleet.pools.*.acquire_s": 10.0, **WRONG}
    assert compile_cluster(short(**later)).pools[1].acquire_ps == ps(15.0)
    assert compile_cluster(short(**later), as_calibrated=True).pools[1].acquire_ps == ps(10.0)


def test_everybody_plans_by_the_calibrated_times():
    plain, wrong = short(), short(**WRONG)
    for a, b in zip(plain.fleet.pools, wrong.fleet.pools, strict=True):
        assert pool_load_times_s(wrong, b) == pool_load_times_s(plain, a)
        assert pool_times(wrong, b).decode_s(8, 4000) == pool_times(plain, a).decode_s(8, 4000)
    assert wrong.as_calibrated.fleet == plain.fleet
    assert plain.as_calibrated is plain


def test_best_fit_reckons_with_the_calibrated_times():
    specs = [
        compile_cluster(load_scenario("aladdin-13b-a100", **{"fleet.pools.*.time_factor": f}))
        for f in (1.0, 1.3)
    ]
    assert specs[0].routes[0][0].placement is not None
    assert specs[0].routes == specs[1].routes
    assert specs[0].pools != specs[1].pools


def test_a_pool_by_itself_can_be_slow():
    spec = compile_cluster(short(**{"fleet.pools.mixed.time_factor": 1.5}))
    base = [int(spec.profiles[pool.profile].decode_base_ps[8]) for pool in spec.pools]
    assert base[0] == base[2]
    assert base[1] == pytest.approx(1.5 * base[0], abs=1)


def test_both_engines_agree_on_a_cluster_that_is_not_as_calibrated():
    scenario = load_scenario(SMALL_WORLD, horizon_s=40, **{"workload.rate_scale": 0.2}, **WRONG)
    requests = draw_requests(scenario, np.random.default_rng(0))
    spec = compile_cluster(scenario)
    results = []
    for make in (ReferenceEngine, FastEngine):
        engine = make(spec, requests)
        engine.advance(ps(2.0))
        engine.set_target(1, 6, 0)
        engine.advance(ps(40.0))
        results.append(engine.results())
    assert (results[0]["first_token_ps"] >= 0).sum() > 50
    for name in results[0].dtype.names:
        assert (results[0][name] == results[1][name]).all(), name
    slow, right = (
        run_episode(make_policy("static:interactive=2,mixed=2"), s, 0).summary
        for s in (short(**WRONG), short())
    )
    assert slow["interactive/itl_s_mean"] > 1.1 * right["interactive/itl_s_mean"]


def test_a_counted_history_is_of_whole_ten_minutes():
    with pytest.raises(ScenarioError, match="history_s = 37: must be a whole number of 600 s"):
        load_scenario("mixed-slo-hours", history_s=37)


def test_load_time_factor_is_for_loads_that_take_a_time():
    with pytest.raises(ScenarioError, match="load_time_factor = 2"):
        load_scenario("burst-multicast", **{"fleet.pools.*.load_time_factor": 2.0})
    with pytest.raises(ScenarioError, match="time_factor"):
        short(**{"fleet.pools.mixed.time_factor": 0})
    with pytest.raises(ScenarioError, match="acquire_time_factor = 2"):
        load_scenario("multi-region", **{"fleet.pools.*.acquire_time_factor": 2.0})


# ---- metrics that come late ----


class Notes:
    """Changes counts as time goes, and notes what it is shown."""

    name = "notes"

    def reset(self, scenario, seed):
        self.seen, self.asked = [], 0

    def act(self, view):
        self.asked += 1
        self.seen.append(
            (
                view.time_s,
                view.step,
                view.pools.tobytes(),
                view.totals.tobytes(),
                view.instances.tobytes(),
                view.history.tolist(),
                view.token_history.tolist(),
                view.window.arrived.tolist(),
                view.forecast_error.tolist(),
                view.queues.tobytes(),
            )
        )
        return Command(targets={"mixed": 2 + self.asked % 5, "interactive": 2 + self.asked % 3})


def test_a_policy_is_shown_the_cluster_as_it_was():
    now, late = Notes(), Notes()
    result = run_episode(now, short(), 0)
    other = run_episode(late, short(metric_delay_s=30), 0)
    # Its orders do not hang on what it sees, so the cluster is the same.
    assert result.series["reward"].tolist() == other.series["reward"].tolist()
    assert late.seen[:4] == [now.seen[0]] * 4
    assert late.seen[3:] == now.seen[:-3]
    assert [d["time_s"] for d in other.decisions] == [d["time_s"] for d in result.decisions]


def test_forecasts_are_as_late_and_look_as_much_further_ahead():
    class Forecasts(Notes):
        def act(self, view):
            self.seen.append((view.forecast_rate_per_s, view.forecast_quantiles_per_s))
            return Command()

    now, late = Forecasts(), Forecasts()
    # Exponential smoothing is flat: further ahead it says the same, but for the quantiles' residuals.
    run_episode(now, short(), 0)
    run_episode(late, short(metric_delay_s=20), 0)
    for (rate, _), (shown, quantiles) in zip(now.seen, late.seen[2:], strict=False):
        np.testing.assert_array_equal(rate, shown)
        assert quantiles.shape == (2, 2)
        assert (quantiles[:, 0] <= quantiles[:, 1]).all()


def test_the_environment_with_late_metrics_is_the_codec_with_run_episode():
    env = SmallEnv(overrides={**SHORT, "metric_delay_s": 30}, action=("instances", "routing_share"))
    observations = assert_replayed(env)
    metrics = [entry.name.startswith("last/") for entry in env.codec.encoder.entries]
    assert (observations[1][~np.array(metrics)] == observations[0][~np.array(metrics)]).all()
    assert (observations[1][metrics] != observations[0][metrics]).any()


def test_late_metrics_in_the_vectorised_form_and_after_a_restore():
    late = {**SHORT, "metric_delay_s": 20}
    singles = [SmallEnv(overrides=late) for _ in range(2)]
    vector = SmallVectorEnv(2, overrides=late)
    assert_equal_to_singles(vector, singles, 5, fork=lambda env: env.fork())


def test_what_follows_behind_is_saved_with_its_orders():
    scenario = short(metric_delay_s=20)
    requests = draw_requests(scenario, np.random.default_rng(0))
    sim = ClusterSimulation(scenario)
    behind = DelayedCluster(sim)
    for which in (sim, behind):
        which.start(0, requests)

    def go(count):
        command = Command(targets={"mixed": count})
        sim.apply(0, command)
        sim.advance()
        behind.follow([command])
        return behind.sim.engine.states.pool_seen[0].tobytes()

    for count in (5, 3, 6):
        go(count)
    saved = (sim.save(0), behind.save(0))
    first = [go(count) for count in (2, 7, 1)]
    sim.restore(0, saved[0])
    behind.restore(0, saved[1])
    assert [go(count) for count in (2, 7, 1)] == first


def test_a_delay_is_a_whole_number_of_intervals_and_of_whole_episodes():
    for bad in (5, 15, 130):
        with pytest.raises(ScenarioError, match="metric_delay_s"):
            short(metric_delay_s=bad)
    with pytest.raises(ScenarioError, match="decisions"):
        load_scenario("placement-per-request", metric_delay_s=10)
    with pytest.raises(ValueError, match="metric_delay_s"):
        run_streamed(make_policy("static"), short(metric_delay_s=10))


@pytest.mark.parametrize("name", ["qlm", "edf"])
def test_policies_of_virtual_queues_survive_late_metrics(name):
    """Their orders are about single requests, which have moved on: those are refused, and counted."""
    scenario = load_scenario(
        "multi-model-queue",
        horizon_s=40,
        metric_delay_s=10,
        **{"workload.batch_queues.archive-tuned.at_s": 10},
    )
    result = run_episode(make_policy(name), scenario, 0)
    assert len(result.series["reward"]) == scenario.n_steps


def test_views_without_a_future_have_the_tokens_of_the_past():
    scenario = short()
    table = draw_requests(scenario, np.random.default_rng(0))
    sim = ClusterSimulation(scenario)
    sim.start(0, replace(table))
    for _ in range(4):
        sim.advance()
    view = sim.view(0)
    step = (table.arrival_s // scenario.control_interval_s).astype(int)
    tokens = table.input_tokens.astype(int) + table.predicted_output_tokens
    for k in range(4):
        for c in range(2):
            mine = (step == k) & (table.slo_class == c)
            assert view.token_history[k, c] == tokens[mine].sum()
