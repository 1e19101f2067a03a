"""A run whose requests come piece by piece gives the result of one that has them all."""

from __future__ import annotations

import numpy as np
import pytest

from baselines.make import make_policy
from llmscale_env.control.demand import DemandRecord
from llmscale_env.control.results.streamed_columns import StreamedColumns
from llmscale_env.control.reward import draw_chunks, draw_requests
from llmscale_env.control.run import run_episode, run_streamed
from llmscale_env.control.simulation import ClusterSimulation
from llmscale_env.envs.codec import Codec
from llmscale_env.scenarios.load import load_scenario, validate_scenario
from llmscale_env.sim.engine import ENGINES
from llmscale_env.sim.metrics import LATENCIES
from llmscale_env.workload.requests import RequestTable
from tests.test_workload_week import assert_same as same_tables

LLM = "llama-3.1-8b"


def plain(**changes):
    given = {
        "name": "with-failures",
        "horizon_s": 600,
        "control_interval_s": 20,
        "classes": [
            {"name": "fast", "ttft_s": 2, "itl_s": 0.2},
            {"name": "slow", "ttft_s": 100, "itl_s": 2, "priority": 1},
        ],
        "workload": {
            "streams": [
                {"name": "a", "llm": LLM, "slo_class": "fast", "rate_per_s": 4},
                {"name": "b", "llm": LLM, "slo_class": "slow", "rate_per_s": 2},
            ]
        },
        "fleet": {
            "max_gpus": 8,
            "queues": [{"name": "later", "llm": LLM}],
            "pools": [
                {
                    "name": "all",
                    "llm": LLM,
                    "v1": None,
                    "max_instances": 4,
                    "initial_instances": 2,
                    "mtbf_s": 400,
                    "batch_limit": 64,
                }
            ],
            "routes": [{"pools": ["all"], "queue": "later"}],
        },
        **changes,
    }
    return validate_scenario(given)


def both(policy, scenario, chunk_s, seed=3):
    whole = run_episode(make_policy(policy), scenario, seed)
    return whole, run_streamed(make_policy(policy), scenario, seed, chunk_s=chunk_s)


def assert_same(whole, streamed):
    assert whole.series.equals(streamed.series)
    assert whole.decisions == streamed.decisions
    assert whole.summary.keys() == streamed.summary.keys()
    for key, value in whole.summary.items():
        rounded = any(name in key for name in (*LATENCIES, "weighted"))
        expected = pytest.approx(value, rel=1e-5 if rounded else 0, abs=0, nan_ok=True)
        assert streamed.summary[key] == expected, key
    assert len(whole.requests) == len(streamed.requests) > 500
    for name in ("outcome", "slo_class", "llm"):
        one, two = (r.requests[name].value_counts().to_dict() for r in (whole, streamed))
        assert one == two


@pytest.mark.parametrize("chunk_s", [50.0, 77.0, 1e9])
def test_a_streamed_run_with_failures_and_two_classes(chunk_s):
    whole, streamed = both("static", plain(), chunk_s)
    assert_same(whole, streamed)
    assert whole.requests["restarts"].sum() > 0
    arrivals = np.sort(streamed.requests["arrival_s"].to_numpy())
    assert np.allclose(arrivals, whole.requests["arrival_s"], atol=1e-3)


@pytest.mark.parametrize("policy", ["reactive", "lt-ua"])
def test_a_streamed_run_in_regions_with_a_history(policy):
    scenario = load_scenario("multi-region").model_copy(update={"horizon_s": 2 * 3600.0})
    whole, streamed = both(policy, scenario, 1000.0, seed=1)
    assert_same(whole, streamed)
    interactive = streamed.requests["slo_class"] == "interactive"
    assert streamed.requests["served_in"][interactive].notna().mean() > 0.99


def test_pieces_are_the_whole():
    for scenario in (plain(), load_scenario("multi-region")):
        whole = draw_requests(scenario, np.random.default_rng(5))
        ends, pieces = zip(*draw_chunks(scenario, np.random.default_rng(5), 3000.0), strict=True)
        joined = pieces[0]
        for piece in pieces[1:]:
            joined = joined.followed_by(piece)
        same_tables(joined, whole)
        assert np.array_equal(joined.failures, whole.failures)
        assert (joined.history is None) == (whole.history is None)
        if whole.history is not None:
            same_tables(joined.history, whole.history)
        assert ends[-1] == round(scenario.horizon_s * 10**12)
        for end, piece in zip(ends, pieces, strict=True):
            assert not len(piece) or piece.arrival_ps[-1] < end


def test_a_piece_that_is_refused_changes_nothing():
    """The engine would take requests without prefixes; the table of the episode cannot go on with them."""
    shares = {"prefix_of": [-2], "prefix_tokens": [32]}
    simulation = ClusterSimulation(load_scenario("chat-prefix", horizon_s=60))
    simulation.start(0, RequestTable.build([1.0], [50], [5], **shares))
    for piece, said in (
        (RequestTable.build([2.0], [50], [5]), "in all pieces of an episode, or in none"),
        (RequestTable.build([0.5], [50], [5], **shares), "arrival_ps.* latest arrival so far"),
    ):
        with pytest.raises(ValueError, match=said):
            simulation.extend(0, piece)
        assert simulation.engine.ids(0).tolist() == [0]
        assert len(simulation.demand(0).all(60.0).tokens.nonzero()[0]) == 1
    simulation.advance()
    known, results = simulation.retire(0)
    assert len(known) == len(results) == 1


def test_demand_is_the_same_piece_by_piece():
    scenario = load_scenario("multi-region")
    whole = draw_requests(scenario, np.random.default_rng(5))
    record = DemandRecord(whole, scenario.history_s)
    pieces = [piece for _, piece in draw_chunks(scenario, np.random.default_rng(5), 3000.0)]
    growing = DemandRecord(pieces[0], scenario.history_s)
    growing.until(0.0, 900.0)  # binned before the rest comes
    for piece in pieces[1:]:
        growing.add(piece)
    for bin_s in (900.0, 300.0):
        one, two = (r.until(scenario.horizon_s, bin_s) for r in (record, growing))
        assert one.tokens.sum() > 0
        assert np.array_equal(one.tokens, two.tokens)


def test_nobody_is_told_a_future_that_is_not_there():
    with pytest.raises(ValueError, match="told the future"):
        run_streamed(make_policy("static"), plain(), forecaster="clairvoyant")
    with pytest.raises(ValueError, match="told the future"):
        run_streamed(make_policy("lt-u", forecast="oracle"), load_scenario("multi-region"))


def test_kept_requests_grow():
    result = run_streamed(make_policy("static"), plain(), 1, chunk_s=10.0)
    assert len(result.requests) == result.summary["joint/arrivals"]
    assert len(StreamedColumns()) == 0


class PlacesEach:
    """Sends the request at issue to the second of the shortest queues, as a network's action head does."""

    name = "places-each"

    def reset(self, scenario, seed):
        self.codec = Codec(scenario, ("request", "workers"), ("place_request",))
        self.codec.reset(seed)

    def act(self, view):
        possible = np.flatnonzero(self.codec.mask(view))
        return self.codec.decode(possible[[min(2, len(possible) - 1)]], view)


@pytest.mark.parametrize("engine", ENGINES)
def test_requests_are_placed_by_id_once_others_are_forgotten(engine):
    """What is shown of the request at issue, and what is placed, is the same as if all were known."""
    scenario = load_scenario("placement-per-request", horizon_s=100)
    whole = run_episode(PlacesEach(), scenario, 0, forecaster=None, engine=engine)
    streamed = run_streamed(PlacesEach(), scenario, 0, chunk_s=20.0, forecaster=None, engine=engine)
    assert_same(whole, streamed)
    assert whole.summary["clipped"] == 0
