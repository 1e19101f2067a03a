"""BlitzScale's Figure 12 with both numbers, its integer programme, and cooperative execution."""

from __future__ import annotations

import math
from itertools import pairwise, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baselines.blitzscale.live import SOURCE, TARGET, execute, loaded_at
from baselines.blitzscale.zigzag import Pipeline, best_effort, zigzag
from baselines.solver import SolverSettings

pytest.importorskip("pulp")

LAYERS, LOAD, N = 7, 6, 6
ONES = (1.0,) * N


# ---- Figure 12 ----


@pytest.mark.parametrize(
    "rule, target_layers, finished, latency",
    [
        ("best-effort", (1,) * N, (7, 13, 19, 25, 31, 37), 32),
        ("pull", (1, 2, 2, 3, 4, 4), (7, 12, 17, 21, 24, 27), 22),
    ],
)
def test_figure_12(rule, target_layers, finished, latency):
    done = execute(rule, loaded_at(LAYERS, LOAD), ONES)
    assert (done.target_layers, done.finished) == (target_layers, finished)
    assert (done.taken[-1], done.latency(N - 1)) == (5, latency)


def test_figure_12_by_the_programme():
    plan = zigzag(LAYERS, LOAD, N)
    assert plan.target_layers == (1, 2, 2, 3, 4, 4)
    assert plan.average == 17.0
    assert plan.optimal
    rehearsed = execute(plan, loaded_at(LAYERS, LOAD), ONES)
    # The source begins at 1, when the target has executed its first layer, and never waits after that.
    assert rehearsed.finished == tuple(1 + time for time in plan.latencies)
    assert rehearsed.latency(N - 1) == 22


def test_the_printed_programme_is_worse_than_best_effort():
    printed = zigzag(LAYERS, LOAD, N, form="printed")
    assert printed.target_layers == (3, 0, 0, 0, 0, 0)
    assert printed.average == 21.5
    assert "C3 of batch 1" in printed.breaks(LOAD)
    effort = best_effort(LAYERS, 1, N)
    assert effort.average == 21.0
    assert effort.breaks(LOAD) == ()


# ---- the programme ----


def least_average(layers: int, load: float, weights, form) -> float:
    """By trying all."""
    pipelines = (
        Pipeline(layers, t, weights) for t in product(range(layers + 1), repeat=len(weights))
    )
    return min(p.average for p in pipelines if not p.breaks(load, form))


@given(
    st.integers(1, 4),
    st.sampled_from([0.5, 1.0, 2.0, 3.0, 6.0]),
    st.lists(st.sampled_from([0.5, 1.0, 2.0]), min_size=1, max_size=4),
    st.sampled_from(["corrected", "printed"]),
    st.sampled_from(["highs", "cbc"]),
)
@settings(max_examples=40, deadline=None)
def test_no_pipeline_is_better(layers, load, weights, form, solver):
    exact = SolverSettings(gap=0.0, solver=solver)
    found = zigzag(layers, load, len(weights), weights=weights, form=form, settings=exact)
    assert found.breaks(load, form) == ()
    assert found.average == pytest.approx(least_average(layers, load, tuple(weights), form))


def test_constraints_by_hand():
    broken = Pipeline(4, (2, 4, 5), (1.0, 1.0, 1.0)).breaks(1.0)
    # Batch 1 needs a layer that comes at 1; batch 2 has 6 layers done before 2, C3 3 before 2.
    assert broken[:3] == ("C3 of batch 1", "C2 of batch 2", "C3 of batch 2")
    assert "C1 of batch 3" in broken


def test_weights():
    heavy = zigzag(8, 4, 4, weights=(1, 1, 1, 3))
    assert heavy.latencies[-1] == sum(
        w * s for w, s in zip(heavy.weights, heavy.source_layers, strict=True)
    )


@pytest.mark.parametrize(
    "arguments, message",
    [
        ((0, 1, 1), "layers = 0"),
        ((4, 0, 1), "load_time = 0"),
        ((4, 1, 0), "batches = 0"),
    ],
)
def test_wrong_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        zigzag(*arguments)


def test_best_effort_takes_at_most_half():
    assert best_effort(7, 7, 2).target_layers == (3, 3)
    assert best_effort(7, 2, 2).target_layers == (2, 2)
    assert best_effort(1, 1, 1).target_layers == (1,)
    assert best_effort(7, 0, 1).target_layers == (0,)


# ---- execution ----


def test_without_layers_the_source_works_alone():
    alone = execute("pull", (math.inf,) * 7, ONES)
    assert alone.finished == (7, 14, 21, 28, 35, 42)
    assert {step.instance for step in alone.steps} == {SOURCE}
    late = execute("best-effort", (8, math.inf), (1.0, 1.0, 2.0, 2.0))
    # The first two are done at 4, the third is at the source from then to 8; then a layer has come.
    assert late.target_layers == (0, 0, 0, 1)
    assert late.finished == (2, 4, 8, 12)


def test_arrivals_and_idle_instances():
    done = execute("pull", (0, 0), (1.0, 1.0), arrivals=(0, 10))
    # Target 0 to 1, source 1 to 2, nobody until 10; the same again.
    assert done.finished == (2, 12)
    assert done.latency(1) == 2


def test_all_loaded_the_target_does_most_of_it():
    done = execute("pull", (0, 0), (1.0,) * 3)
    # The source takes each after its first layer.
    assert done.target_layers == (1, 1, 1)
    assert done.finished == (2, 3, 4)


def test_weights_stretch_layers():
    done = execute("best-effort", (0, 0, 0, 0), (1.0, 3.0))
    # Two layers each: target 0 to 2, 2 to 8; source 2 to 4, 8 to 14.
    assert done.finished == (4, 14)


@pytest.mark.parametrize(
    "rule, loads, weights, message",
    [
        ("pull", (), (1.0,), "loads"),
        ("pull", (2, 1), (1.0,), "loads"),
        ("pull", (0,), (), "weights"),
        ("guess", (0,), (1.0,), "rule = 'guess'"),
        (Pipeline(2, (1,), (1.0,)), (0,), (1.0,), "a pipeline of 1 batches and 2 layers"),
        (Pipeline(1, (1,), (1.0,)), (math.inf,), (1.0,), "infinite"),
    ],
)
def test_wrong_executions(rule, loads, weights, message):
    with pytest.raises(ValueError, match=message):
        execute(rule, loads, weights)


@st.composite
def works(draw):
    layers = draw(st.integers(1, 6))
    loads = sorted(draw(st.lists(st.integers(0, 30), min_size=layers, max_size=layers)))
    weights = draw(st.lists(st.sampled_from([0.5, 1.0, 2.0]), min_size=1, max_size=6))
    arrivals = sorted(
        draw(st.lists(st.integers(0, 20), min_size=len(weights), max_size=len(weights)))
    )
    return tuple(map(float, loads)), tuple(weights), tuple(map(float, arrivals))


@given(works(), st.sampled_from(["pull", "best-effort"]))
@settings(max_examples=200, deadline=None)
def test_every_layer_is_executed_once_in_order_where_it_is_loaded(work, rule):
    loads, weights, arrivals = work
    done = execute(rule, loads, weights, arrivals=arrivals)
    for batch, arrival in enumerate(arrivals):
        steps = sorted((s for s in done.steps if s.batch == batch), key=lambda s: s.begin)
        assert [k for s in steps for k in range(s.first, s.first + s.layers)] == list(
            range(len(loads))
        )
        assert all(a.end <= b.begin for a, b in pairwise(steps))
        assert steps[0].begin >= arrival
        assert steps[-1].end == done.finished[batch]
        for step in steps:
            if step.instance == TARGET:
                assert loads[step.first + step.layers - 1] <= step.begin
    for instance in (SOURCE, TARGET):
        mine = [s for s in done.steps if s.instance == instance]
        assert all(a.end <= b.begin for a, b in pairwise(mine))
    heads = [s.batch for s in done.steps if s.instance == SOURCE]
    assert heads == sorted(heads)  # first come first served


@given(st.integers(2, 8), st.integers(1, 12), st.integers(1, 8))
@settings(max_examples=60, deadline=None)
def test_pulling_is_never_later_than_best_effort_for_the_last(layers, load, n):
    loads = loaded_at(layers, load)
    pulled = execute("pull", loads, (1.0,) * n)
    effort = execute("best-effort", loads, (1.0,) * n)
    assert pulled.finished[-1] <= effort.finished[-1]


@given(st.integers(2, 10), st.sampled_from([0.5, 1, 2, 4, 6, 12]), st.integers(1, 8))
@settings(max_examples=40, deadline=None)
def test_what_the_corrected_programme_promises_can_be_done(layers, load, n):
    """The layer that comes just then is executed while the source still waits for the first batch."""
    plan = zigzag(layers, load, n)
    loads = loaded_at(layers, load)
    rehearsed = execute(plan, loads, (1.0,) * n)
    late = [a - 1 - b for a, b in zip(rehearsed.finished, plan.latencies, strict=True)]
    assert max(late) <= 1e-9
    # Pulling knows no plan and is no worse than by one layer's time.
    pulled = execute("pull", loads, (1.0,) * n)
    assert sum(pulled.finished) <= sum(rehearsed.finished) + n
