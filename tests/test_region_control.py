"""Regions under control: what is recorded, seen, ordered and told afterwards."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from llmscale_env.control.command import Command, CommandError
from llmscale_env.control.demand import DemandRecord
from llmscale_env.control.regions import ScalingOrder
from llmscale_env.control.reward import draw_requests
from llmscale_env.control.run import load_steps, run_episode
from llmscale_env.control.simulation import ClusterSimulation
from llmscale_env.scenarios.load import load_scenario, validate_scenario
from llmscale_env.workload.requests import RequestTable
from tests.refusals import refuses
from tests.test_region_scenarios import SMALL, small

MINUTE_S = 60.0


class Script:
    """Orders by number of the decision."""

    name = "script"

    def __init__(self, *orders):
        self.orders = orders
        self.views = []

    def reset(self, scenario, seed):
        self.views = []

    def act(self, view):
        self.views.append(view)
        _ = view.regions  # as they stand now
        return self.orders[view.step] if view.step < len(self.orders) else Command()


def table(arrival_s, **columns):
    names = {"llm_names": ("a", "b"), "class_names": ("x", "y"), "region_names": ("w", "e")}
    return RequestTable.build(arrival_s, 10, 100, predicted_output_tokens=5, **columns, **names)


def test_demand_by_hand():
    requests = table([0, 30, 60, 61], llm=[0, 1, 0, 0], region=[0, 1, 1, 1], slo_class=[0, 0, 1, 1])
    record = DemandRecord(requests)
    assert record.until(59.9, MINUTE_S).tokens.shape == (0, 2, 2, 2)
    first = record.until(60.0, MINUTE_S).tokens
    assert first.shape == (1, 2, 2, 2)
    assert (first[0, 0, 0, 0], first[0, 1, 1, 0], first.sum()) == (15, 15, 30)
    later = record.until(600.0, MINUTE_S)
    assert later.tokens.shape[0] == 10  # minutes without requests are there
    assert later.tokens[1, 0, 1, 1] == 30
    assert later.tokens_per_s[1, 0, 1, 1] == 0.5
    assert record.until(120.0, 120.0).tokens.sum() == 60


def test_demand_knows_the_history_and_takes_later_pieces():
    requests = replace(table([5]), history=table([10, 70]))
    record = DemandRecord(requests, history_s=120.0)
    now = record.until(0.0, MINUTE_S)
    assert (now.start_s, now.tokens.sum(axis=(1, 2, 3)).tolist()) == (-120.0, [15, 15])
    assert record.until(60.0, MINUTE_S).tokens.sum(axis=(1, 2, 3)).tolist() == [15, 15, 15]
    record.add(table([90, 95]))
    assert record.until(120.0, MINUTE_S).tokens.sum(axis=(1, 2, 3)).tolist() == [15, 15, 15, 30]
    assert record.all(MINUTE_S).tokens.sum() == 75
    refuses("whole number of bins", record.until, 0.0, 50.0)


def test_what_a_view_shows_of_demand_ends_now():
    scenario = validate_scenario(small(history_s=1800))
    script = Script()
    run_episode(script, scenario, 1, forecaster=None)
    requests = draw_requests(scenario, np.random.default_rng(1))
    for view in script.views:
        # Read again afterwards, when all has come: a view still shows its own time.
        seen = view.demand(900.0)
        came = requests.arrival_s < view.time_s
        tokens = requests.input_tokens + requests.predicted_output_tokens
        history = requests.history
        before = (history.input_tokens + history.predicted_output_tokens).sum()
        assert seen.tokens.sum() == tokens[came].sum() + before
        assert len(seen.tokens) == 2 + view.step
        assert seen.tokens.base is None  # what is still to come is not behind it


def started(scenario):
    """A simulation of the scenario, at its start."""
    sim = ClusterSimulation(scenario)
    sim.start(0, draw_requests(scenario, np.random.default_rng(0)))
    return sim


def test_orders_reach_the_engine():
    sim = started(validate_scenario(SMALL))
    engine = sim.engine
    clipped = sim.apply(
        0,
        Command(
            regional_threshold={"interactive": 0.5},
            regional_preference={"interactive": {"west": ("east", "west")}},
            background={("later", "east"): (0.2, 0.1)},
            scaling={"chat-west": ScalingOrder("target", 3, 100.0)},
        ),
    )
    assert clipped == 0
    assert engine.states.takes[0, 0, 0].tolist() == [500_000, 500_000]
    sim.apply(0, Command(regional_threshold={("interactive", "east"): 0.9}))
    assert engine.states.takes[0, 0, 0].tolist() == [500_000, 900_000]
    assert engine.states.prefer[0, 0, 0].tolist() == [[1, 0], [1, 0]]
    assert sim.view(0).regions.thresholds.tolist() == [[0.6, 0.5], [0.2, 0.1]]
    assert engine.states.endpoint[0, 0]["target"] == 3
    sim.apply(0, Command(background={"later": (0.0, 0.0)}))
    assert sim.view(0).regions.thresholds.tolist() == [[0.0, 0.0], [0.0, 0.0]]


@pytest.mark.parametrize(
    "order, message",
    [
        ({"regional_threshold": {"fast": 0.5}}, r"class 'fast' is unknown"),
        ({"regional_threshold": {"interactive": -1}}, r"threshold = -1: must be at least 0"),
        ({"regional_threshold": {"background": 0.5}}, r"no route of kind regional"),
        ({"regional_preference": {"interactive": {"north": ()}}}, r"region 'north' is unknown"),
        ({"regional_preference": {"interactive": {"west": ("west",)}}}, r"must have each of"),
        ({"background": {"now": (1, 1)}}, r"no such queue manager; there are \['later/west'"),
        ({"scaling": {"cart": ScalingOrder("none")}}, r"pool 'cart' is unknown"),
        ({"scaling": {"chat-west": ScalingOrder("up")}}, r"kind 'up' is unknown"),
        ({"scaling": {"chat-west": ScalingOrder("target", 99)}}, r"target = 99"),
        ({"targets": {"chat-west": 4, "chat-east": 4}}, None),
    ],
)  # fmt: skip
def test_impossible_orders_say_why(order, message):
    strict = started(validate_scenario(small(impossible_commands="error")))
    if message is None:
        assert strict.apply(0, Command(**order)) == 0
        return
    refuses(message, lambda: strict.apply(0, Command(**order)), error=CommandError)


@pytest.mark.parametrize(
    "order, message",
    [
        ({"regional_threshold": {"interactive": math.nan}}, r"threshold = nan: must be a number"),
        ({"regional_threshold": {"interactive": "x"}}, r"threshold = 'x': must be a number"),
        ({"background": {"later": (math.nan, 0.0)}}, r"threshold = nan: must be a number"),
        ({"background": {"later": (0.5,)}}, r"must be two utilisations"),
        ({"background": {"later": 0.5}}, r"0.5: must be two utilisations"),
        ({"scaling": {"chat-west": "reactive"}}, r"'reactive': must be a ScalingOrder"),
        ({"scaling": {"chat-west": ScalingOrder("target", 2.5)}}, r"target = 2.5: must be a whole"),
        ({"scaling": {"chat-west": ScalingOrder("target", math.nan)}}, r"target = nan"),
    ],
)  # fmt: skip
def test_what_is_no_order_at_all_is_an_error_also_where_the_impossible_is_clipped(order, message):
    sim = started(validate_scenario(SMALL))
    refuses(message, lambda: sim.apply(0, Command(**order)), error=CommandError)


@pytest.mark.parametrize(
    "order",
    [
        {"regional_threshold": {"interactive": 1e300}},
        {"scaling": {"chat-west": ScalingOrder("target", -1)}},
        {"scaling": {"chat-west": ScalingOrder("target-ahead", 1, math.inf)}},
    ],
)
def test_numbers_out_of_range_are_counted_as_clipped(order):
    sim = started(validate_scenario(SMALL))
    before = sim.engine.states.takes.tolist(), sim.engine.states.endpoint["target"].tolist()
    assert sim.apply(0, Command(**order)) == 1
    after = sim.engine.states.takes.tolist(), sim.engine.states.endpoint["target"].tolist()
    assert after == before


def test_missing_vms_are_counted_as_clipped():
    scenario = validate_scenario(small(fleet__pools__0__spot={"initial": 1}))
    assert started(scenario).apply(0, Command(targets={"chat-west": 4})) == 2
    strict = started(load_scenario(scenario, impossible_commands="error"))
    with pytest.raises(CommandError, match="2 more than spot VMs there are"):
        strict.apply(0, Command(targets={"chat-west": 4}))


def quiet(**scaling):
    """Nothing scales by itself, and no background request is taken."""
    return small(
        fleet__pools__0__scaling={"kind": "none", "least": 1, **scaling},
        fleet__queue_manager={"one": 0.0, "two": 0.0},
    )


def test_a_view_shows_regions():
    scenario = validate_scenario(quiet())
    script = Script(Command(targets={"chat-west": 3}), Command(targets={"chat-west": 1}))
    result = run_episode(script, scenario, 2, forecaster=None)
    start, second, third = script.views[0], script.views[1], script.views[2]
    assert start.regions.spot.tolist() == [3, 3]
    assert start.regions.instances.tolist() == [1, 1]
    assert np.isfinite(start.regions.utilisation).all()
    assert second.regions.active.tolist() == [3, 1]
    assert second.regions.spot.tolist() == [1, 3]
    assert third.regions.spot.tolist() == [3, 3]
    for view in script.views:
        assert view.regions.vms.tolist() == [4, 4]
        assert view.regions.endpoint_utilisation.shape == (1, 2)
    # Background requests wait, the oldest the longest.
    assert third.regions.waiting[0] > second.regions.waiting[0] > 0
    assert third.regions.oldest_s[0] == pytest.approx(second.regions.oldest_s[0] + 900)
    assert result.summary["reclaims_own"] == 2
    assert result.summary["donations"] == 2
    assert result.summary["looks_out"] == result.summary["looks_in"] == 0
    # Two reclaimed VMs waited for a minute or so, at most five.
    assert 2 * 12 <= result.summary["waste_own_gpu_hours"] * 3600 <= 2 * 300


def test_spot_and_service_are_all_hours():
    scenario = load_scenario(validate_scenario(SMALL), control_interval_s=60.0)
    s = run_episode(Script(), scenario, 3, forecaster=None).summary
    assert s["instance_hours"] == pytest.approx(s["gpu_hours"])
    assert s["instance_hours"] == pytest.approx(
        sum(s[f"pool/{pool.name}/instance_hours"] for pool in scenario.fleet.pools)
    )
    # The integral over what was seen every minute misses less than a minute per change.
    changes = s["reclaims_own"] + s["donations"]
    assert s["instance_hours"] + s["spot_gpu_hours"] == pytest.approx(8.0, abs=changes / 60 + 1e-6)


def test_latencies_by_region():
    scenario = validate_scenario(SMALL)
    result = run_episode(Script(), scenario, 4, forecaster=None)
    frame, s = result.requests, result.summary
    assert list(frame["region"].cat.categories) == ["west", "east"]
    east = frame[(frame["region"] == "east") & (frame["slo_class"] == "interactive")]
    assert s["region/east/interactive/requests"] == len(east)
    assert s["region/east/interactive/ttft_s_p95"] == pytest.approx(
        np.percentile(east["ttft_s"].dropna(), 95)
    )
    served = frame[frame["instance"] >= 0]
    assert (served["served_in"] == np.where(served["instance"] < 4, "west", "east")).all()
    assert (frame["served_in"].isna() == (frame["instance"] < 0)).all()


def test_the_seed_makes_latencies():
    scenario = validate_scenario(SMALL)
    requests = draw_requests(scenario, np.random.default_rng(5))
    first, again = (run_episode(Script(), scenario, requests=requests).requests for _ in range(2))
    assert first["ttft_s"].equals(again["ttft_s"])
    other = replace(requests, salt=requests.salt + 1)
    salted = run_episode(Script(), scenario, requests=other).requests
    assert not first["ttft_s"].equals(salted["ttft_s"])


def test_steps_until_an_instance_serves():
    # A reclaimed VM serves after a minute, not after the time that weights would take.
    assert load_steps(load_scenario(validate_scenario(SMALL), control_interval_s=20.0)) == 3
