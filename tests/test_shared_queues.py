"""What a controller is shown of shared queues, against a count of everything in them."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby
from typing import Any

import numpy as np
import pytest

from llmscale_env.control.reward import draw_requests
from llmscale_env.control.simulation import ClusterSimulation
from llmscale_env.scenarios import load_scenario
from llmscale_env.sim.fast import EngineBatch, FastEngine
from llmscale_env.sim.observed import N_SLACK_BINS, SLACK_BOUNDS
from tests.engine_cases import Case, arguments, make_case
from tests.small_world import SMALL_WORLD


def expected(case: Case, batch: EngineBatch, q: int, now_ps: int) -> dict[str, Any]:
    """`QUEUE_SEEN`, and the queue in runs, by walking through it."""
    table, results = case.requests, batch.results(0)
    ids = np.array(batch.queues(0)[q], np.int64)
    emitted = results["emitted_tokens"][ids].astype(np.int64)
    predicted = table.predicted_output_tokens[ids].astype(np.int64)
    inputs = table.input_tokens[ids].astype(np.int64)
    arrival, cls = table.arrival_ps[ids], table.slo_class[ids]
    slo = np.array([c.ttft_slo_ps for c in case.spec.classes], np.int64)[cls]
    share = (arrival + slo - now_ps) / slo
    bins = (share[:, None] >= np.array(SLACK_BOUNDS)).sum(axis=1)
    fresh = (
        results["first_token_ps"][ids] < 0
    )  # a failure takes the tokens, not the first one's time
    keys = zip(arrival.tolist(), cls.tolist(), (~fresh).tolist(), strict=True)
    return {
        "requests": len(ids),
        "tokens": int((inputs + emitted).sum()),
        "predicted_tokens": int(np.maximum(1, predicted - emitted).sum()),
        "oldest_ps": int(arrival.min()) if len(ids) else -1,
        "slack_bins": np.bincount(bins, minlength=N_SLACK_BINS).tolist(),
        "fresh": int(fresh.sum()),
        "fresh_input": int(inputs[fresh].sum()),
        "fresh_predicted": int(predicted[fresh].sum()),
        "fresh_squares": int((predicted[fresh] ** 2).sum()),
        "runs": [(*key, len(list(same))) for key, same in groupby(keys)],
        "ids": ids.tolist(),
        "details": np.stack([arrival, cls, inputs, predicted, emitted]).tolist(),
    }


def shown(batch: EngineBatch, q: int) -> dict[str, Any]:
    """The same as the engine shows it."""
    seen, queued = batch.states.queue_seen[0, q], batch.queued(0, q)
    names = ("arrival_ps", "slo_class", "input_tokens", "predicted_tokens", "emitted_tokens")
    return {
        **{name: seen[name].tolist() for name in seen.dtype.names},
        "runs": batch.runs(0, q).tolist(),
        "ids": queued["request"].tolist(),
        "details": [queued[name].tolist() for name in names],
    }


def impatient(case: Case, seed: int) -> Case:
    """The case with TTFT targets about as long as its requests wait, so that every bin is used."""
    rng = np.random.default_rng(seed)
    longest = max(4, int(case.stops_ps[-2:][0]))
    targets = [int(rng.integers(1, max(2, longest // d))) for d in rng.integers(1, 30, 3)]
    classes = tuple(
        replace(c, ttft_slo_ps=slo) for c, slo in zip(case.spec.classes, targets, strict=False)
    )
    return replace(case, spec=replace(case.spec, classes=classes))


@pytest.mark.parametrize(
    "first", [0, 100, 200, *(pytest.param(k, marks=pytest.mark.slow) for k in (300, 400, 500))]
)
def test_queues_are_shown_as_they_are(first: int) -> None:
    """Also after a copy, and whether or not somebody has looked before."""
    rng = np.random.default_rng(first)
    reached = {"fresh": 0, "started": 0, "merged": 0, "bins": np.zeros(N_SLACK_BINS, np.int64)}
    for seed in range(first, first + 100):
        case = impatient(make_case(seed), seed)
        engine = FastEngine(case.spec, case.requests)
        last = int(case.requests.arrival_ps[-1]) + 1
        looks = rng.integers(0, 2 * last, 12).tolist()
        for stop_ps in sorted({*case.stops_ps, *looks}):
            engine.advance(stop_ps)
            if rng.random() < 0.2:
                other = EngineBatch(case.spec, 1, 1)
                other.restore(0, engine.batch.save(0))
                engine.batch = other
            if rng.random() < 0.8:
                engine.batch.close_windows(0, 1)
                for q in range(len(case.spec.queue_llm)):
                    want = expected(case, engine.batch, q, stop_ps)
                    assert shown(engine.batch, q) == want, f"seed {seed}, queue {q} at {stop_ps}"
                    reached["fresh"] += want["fresh"]
                    reached["started"] += want["requests"] - want["fresh"]
                    reached["merged"] += want["requests"] - len(want["runs"])
                    reached["bins"] += want["slack_bins"]
            for command in (c for c in case.script if c.at_ps == stop_ps):
                try:
                    getattr(engine, command.name)(*arguments(engine, case, command))
                except ValueError:
                    continue
    assert min(reached["fresh"], reached["started"], reached["merged"]) > 0
    assert (reached["bins"] > 0).all()


def test_queue_number_out_of_range() -> None:
    case = next(c for c in map(make_case, range(20)) if len(c.spec.queue_llm) == 1)
    batch = FastEngine(case.spec, case.requests).batch
    for read in (batch.queued, batch.runs):
        with pytest.raises(ValueError, match="queue = 1: must be an integer in 0"):
            read(0, 1)


def test_a_view_gives_requests_and_runs_of_a_queue() -> None:
    scenario = load_scenario(SMALL_WORLD, horizon_s=600)
    sim = ClusterSimulation(scenario)
    sim.start(0, draw_requests(scenario, np.random.default_rng(1)))
    for _ in range(33):  # the batch queue has appeared, and nobody pulls but the mixed instances
        sim.advance()
    view = sim.view(0)
    queued, runs = view.queued(0), view.queued_runs(0)
    assert len(queued) == view.queues["requests"][0] > 1000
    assert len(runs) < len(queued) / 2
    run_of = np.repeat(np.arange(len(runs)), runs.requests)
    for name in ("arrival_s", "slo_class", "deadline_s"):
        assert np.array_equal(getattr(queued, name), getattr(runs, name)[run_of])
        with pytest.raises(ValueError, match="read-only"):
            getattr(queued, name)[0] = 0
    assert np.array_equal(queued.emitted_tokens > 0, runs.started[run_of])
    assert (queued.deadline_s - queued.arrival_s).tolist() == pytest.approx([1200.0] * len(queued))
    arrived = sim.requests[0].arrival_s[queued.request_id]
    assert np.array_equal(arrived, queued.arrival_s)
