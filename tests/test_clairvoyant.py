"""The clairvoyant bound: prices, programme, and that no schedule of small clusters goes below it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import clairvoyant_cases as cases
import numpy as np
import pytest
from small_clusters import profile

pytest.importorskip("pulp")
pytest.importorskip("highspy")

from baselines.clairvoyant import Bound, NotSupported, clairvoyant_bound
from baselines.clairvoyant.__main__ import main
from baselines.clairvoyant.demand import find_needs
from baselines.clairvoyant.prices import Machine, find_prices, line_ps, machines
from baselines.clairvoyant.programme import Flow, Group, Problem, solve
from baselines.solver import SolverSettings
from llmscale_env.control.run import run_episode
from llmscale_env.scenarios import load_scenario, with_overrides
from llmscale_env.sim.compile import compile_cluster, ps
from tests.small_world import SMALL_WORLD

LEVELS = (0.5, 0.9, 0.99)
N_CASES = 32


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def prices_of(machine: Machine, least: int = 2) -> Any:
    return find_prices([machine], ints(40, 3), ints(900, 30), ints(4, 20), least)


# ---- prices ----


def test_a_prompt_is_charged_its_share_of_the_best_prefill_it_can_be_in():
    # A prefill takes 5 + 3 T. With 4 others at most 10 tokens in all: 35 / 10 each; alone 5 + 3 * 20.
    prices = prices_of(Machine(profile(), 1, 0, 10, 1))
    assert prices.prefill_ps(ints(4, 10, 20)) == pytest.approx([14, 35, 65])
    assert prices_of(Machine(profile(), 2, 0, 10, 1)).prefill_ps(ints(4)) == pytest.approx([28])


def test_a_full_batch_is_charged_what_it_takes():
    # 10 + n + 2 c, at most 16 requests and 100 tokens with the next ones: c + n <= 100.
    prices = prices_of(Machine(profile(kv_capacity_tokens=100), 1, 0, 10, 1))
    a, b = prices.per_request_ps, prices.per_context_ps
    # The largest batch with the least context: 10 + 16 + 2 * 32; then the largest batch, full memory.
    charged = a * 16 + b * 32
    assert charged.max() == pytest.approx(90)
    assert (a * 16 + b * 84).max() == pytest.approx(10 + 16 + 2 * 84)
    assert (a * 1 + b * 99).max() == pytest.approx(10 + 1 + 2 * 99)


@pytest.mark.parametrize("chunk", [0, 12])
@pytest.mark.parametrize("capacity", [60, 400])
def test_no_iteration_is_charged_more_than_it_takes(chunk: int, capacity: int):
    rng = np.random.default_rng(chunk + capacity)
    base = np.cumsum(rng.integers(1, 9, 17)) + 20
    base[9:] -= 5  # a measured table may fall
    table = profile(kv_capacity_tokens=capacity, pair_ps=1)
    vars(table)["decode_base_ps"][:] = base
    machine = Machine(table, 1, chunk, 0 if chunk else 12, 1)
    prices = prices_of(machine)
    n, c = (grid.ravel() for grid in np.meshgrid(np.arange(1, 17), np.arange(1, capacity)))
    there = (c >= 2 * n) & (c + n <= capacity)
    n, c = n[there], c[there]
    time = table.decode_base_ps[n] + table.decode_per_token_ps[n] * c
    assert (prices.decode_ps(n, c) <= time).all()
    assert prices.decode_ps(n, c).max() > 0
    # A token from a prefill of its context.
    again = np.arange(2, 40)
    assert (prices.decode_ps(np.ones(38), again) <= prices.prefill_ps(again)).all()
    if not chunk:
        return
    rate = prices.modes[0].per_token_ps[0]
    for decoding in range(12):
        for size in range(1, 12 - decoding + 1):
            for context in {2 * decoding, max(2 * decoding, capacity - decoding)}:
                context = context if decoding else 0
                line = line_ps(
                    ints(decoding + size),
                    table.mixed_knot_tokens,
                    table.mixed_knot_ps,
                    table.mixed_slope_ps,
                )
                took = line + table.mixed_base_ps[decoding] + 2 * context
                charged = prices.decode_ps(ints(decoding), ints(context)).max() + rate * size
                assert charged <= took[0] * (1 + 1e-9)


# ---- programme ----


def problem(**changes: Any) -> Problem:
    """Four slots of 1 s; work of 2 GPU-seconds that comes in the first and is due in the second."""
    work = Flow(np.ones(1), np.array([2.0, 2, 2, 2]), np.array([0.0, 2, 2, 2]))
    group = Group(0, 4, ((0, 1, 0.5),))
    fields: dict[str, Any] = {
        "length_s": np.ones(4),
        "most": np.full(4, 8.0),
        "initial": 0.0,
        "load_s": 3.0,
        "flows": [work],
        "groups": [group],
        "may_miss": [0],
    }
    return Problem(**(fields | changes))


def least(given: Problem) -> float:
    return solve(given, SolverSettings()).gpu_s


def test_work_is_spread_where_loading_costs_and_initial_instances_are_free():
    # One GPU for two seconds, loaded once.
    assert least(problem()) == pytest.approx(2 + 3)
    assert least(problem(initial=1.0)) == pytest.approx(2)
    assert least(problem(initial=0.5)) == pytest.approx(2 + 1.5)
    # None can serve in the first slot: two GPUs in the second.
    assert least(problem(most=np.array([0.0, 8, 8, 8]))) == pytest.approx(2 + 6)
    assert solve(problem(most=np.array([0.0, 1, 8, 8])), SolverSettings()).status == "infeasible"


def test_who_is_late_takes_work_away():
    assert least(problem(may_miss=[1])) == pytest.approx((2 + 3) * 0.75)
    assert least(problem(may_miss=[4])) == pytest.approx(0)


def test_every_price_counts():
    # The second price charges 1.5 for the same work.
    work = Flow(np.array([1.0, 1.5]), np.full(4, 2.0), np.array([0.0, 2, 2, 2]))
    assert least(problem(flows=[work])) == pytest.approx((2 + 3) * 1.5)


# ---- the whole ----


def test_one_request_by_hand():
    """A prompt alone, output of one token: its prefill share, and loading as large a part of an instance."""
    scenario, table = cases.case(3)
    scenario = with_overrides(
        scenario,
        {
            "memory_fraction": 0.9,
            "fleet.pools.all.initial_instances": 0,
            "fleet.pools.all.chunk_tokens": 0,
            "fleet.pools.all.load_s": {"ssd": 2.0, "host": 2.0, "multicast": 2.0},
            "classes.fast.ttft_s": 10.0,
        },
    )
    one = type(table)(
        ints(10 * 10**12), ints(0), ints(0), ints(0), ints(8000), ints(1), ints(1),
        table.llm_names, table.class_names,
    )  # fmt: skip
    times = compile_cluster(scenario).profiles[0]
    line = line_ps(
        ints(8000), times.prefill_knot_tokens, times.prefill_knot_ps, times.prefill_slope_ps
    )
    work = float(line[0] + times.prefill_pair_ps * 8000**2) / 1e12
    bound = clairvoyant_bound(scenario, attainment=1.0, slot_s=10.0, requests=one)
    # Arrival 10 s, due at 20 s: one slot, in which the mean is a tenth of the work.
    assert bound.gpu_s == pytest.approx(work + 2 * work / 10, rel=1e-5)


@pytest.fixture(scope="module")
def found() -> list[tuple[float, float]]:
    """Of generated cases and levels: (bound, GPU-seconds of the best schedule that attains)."""
    pairs = []
    for seed in range(N_CASES):
        scenario, requests = cases.case(seed)
        episodes = [
            (
                min(e.summary[f"{name}/slo_attainment"] for name in cases.CLASSES),
                e.summary["gpu_hours"] * 3600,
            )
            for e in cases.every_schedule(scenario, requests)
        ]
        for level in LEVELS:
            bound = clairvoyant_bound(scenario, attainment=level, slot_s=5.0, requests=requests)
            assert bound.status in ("optimal", "infeasible")
            best = min((gpu_s for share, gpu_s in episodes if share >= level), default=math.inf)
            pairs.append((bound.gpu_s, best))
    return pairs


@pytest.mark.slow
def test_no_schedule_of_instances_goes_below_the_bound(found: list[tuple[float, float]]):
    for bound, best in found:
        assert bound <= best + 1e-9


@pytest.mark.slow
def test_the_bound_is_not_trivial(found: list[tuple[float, float]]):
    reached = [bound / best for bound, best in found if math.isfinite(best)]
    print(len(reached), np.round(np.quantile(reached, [0, 0.25, 0.5, 0.75, 1]), 3))
    assert len(reached) >= 30, "many cases can be served by some schedule"
    assert min(reached) > 0
    assert np.median(reached) > 0.25
    assert max(reached) > 0.6


@pytest.mark.parametrize("seed", range(6))
def test_what_was_served_is_never_charged_more_than_was_billed(seed: int):
    """The lemma alone: no deadlines, no loading."""
    scenario, requests = cases.case(seed)
    cluster = compile_cluster(scenario)
    kinds = machines(cluster)
    policy = cases.Schedule((2, 1, 2), 256)
    result = run_episode(policy, scenario, requests=requests, forecaster=None)
    done = result.requests[result.requests["e2e_s"].notna()]
    prompt, output = (done[f"{name}_tokens"].to_numpy(np.int64) for name in ("input", "output"))
    tokens, context = output - 1, (output - 1) * prompt + output * (output - 1) // 2
    prices = find_prices(kinds, tokens, context, prompt, int(requests.input_tokens.min()) + 1)
    charged = prices.prefill_ps(prompt).sum() + prices.decode_ps(tokens, context).sum(axis=1).max()
    busy_s = result.series["all/busy_s"].sum()
    assert 0 < charged / 1e12 <= busy_s


def bound_of(seed: int, attainment: float = 0.95, **changes: Any) -> Bound:
    scenario, requests = cases.case(seed)
    changed = with_overrides(scenario, {k.replace("__", "."): v for k, v in changes.items()})
    return clairvoyant_bound(changed, attainment=attainment, slot_s=5.0, requests=requests)


@pytest.mark.parametrize("seed", [1, 4, 9])
def test_more_attainment_costs_more(seed: int):
    costs = [bound_of(seed, level).gpu_s for level in (0.2, 0.5, 0.8, 0.9, 1.0)]
    assert all(a <= b * (1 + 1e-5) for a, b in itertools.pairwise(costs))
    assert costs[0] < costs[3]


@pytest.mark.parametrize("seed", [1, 4, 9])
def test_longer_loading_and_tighter_deadlines_cost_more(seed: int):
    def loading(seconds: float) -> float:
        times = {"ssd": seconds, "host": seconds, "multicast": seconds}
        changes = {"fleet__pools__all__load_s": times, "fleet__pools__all__initial_instances": 0}
        return bound_of(seed, 0.5, **changes).gpu_s

    assert loading(0.5) < loading(2.0) * (1 + 1e-6)
    wide, tight = (bound_of(seed, 0.5, classes__slow__ttft_s=t).gpu_s for t in (25.0, 3.0))
    assert wide <= tight * (1 + 1e-5)


def test_nobody_can_serve_what_comes_as_the_episode_ends():
    scenario, table = cases.case(0)
    late = type(table)(
        table.arrival_ps * 0 + ps(29.999), table.llm, table.region, table.slo_class, table.input_tokens,
        table.output_tokens, table.output_tokens, table.llm_names, table.class_names,
    )  # fmt: skip
    bound = clairvoyant_bound(scenario, attainment=0.9, requests=late)
    assert (bound.status, bound.gpu_s) == ("infeasible", math.inf)


def test_as_many_may_be_late_as_shares_are_counted():
    scenario, table = cases.case(0)
    cluster = compile_cluster(scenario)
    needs = find_needs(table, cluster, machines(cluster), ps(30))
    counts = np.bincount(table.slo_class)
    for share in (0.3, 0.9, 0.95, 1.0):
        least_on_time = np.bincount(needs.slo_class) - needs.may_miss(share)
        assert (least_on_time / counts >= share).all()
        assert ((least_on_time - 1) / counts < share).all()


def test_what_is_not_covered_is_refused():
    with pytest.raises(NotSupported, match="one LLM"):
        clairvoyant_bound(load_scenario("multi-model-queue"))
    with pytest.raises(NotSupported, match="flow"):
        clairvoyant_bound(load_scenario("blitzscale-azure-code-7b"))
    of_today = {"v1": {}, "chunk_tokens": 4096, "preemption": "recompute"}
    changes = {f"fleet.pools.all.{field}": value for field, value in of_today.items()}
    with pytest.raises(NotSupported, match="prefix_cache"):
        clairvoyant_bound(with_overrides(cases.case(0)[0], changes))
    with pytest.raises(ValueError, match="attainment"):
        clairvoyant_bound(load_scenario(SMALL_WORLD), attainment=0.0)
    with pytest.raises(ValueError, match="slot_s"):
        clairvoyant_bound(load_scenario(SMALL_WORLD), slot_s=0.0)


def test_the_command_prints_a_table(capsys: pytest.CaptureFixture[str]):
    words = ["env=mixed-slo-hours", "scenario.horizon_s=60", "seeds=1", "policies=static"]
    assert main(words) == 0
    text = capsys.readouterr().out
    assert "bound GPU-h" in text
    assert "static:" in text


@pytest.mark.parametrize(
    "words, said",
    [
        (
            ["env=mixed-slo-hours", "attainment=2"],
            "attainment = '2': must be a number above 0 and at most 1",
        ),
        (["env=mixed-slo-hours", "attainment=most"], "attainment = 'most': must be a number"),
        (
            ["env=mixed-slo-hours", "slot_s=nan"],
            "slot_s = 'nan': must be a number at least 0.01",
        ),
        (["env=multi-region"], "the clairvoyant bound is for one LLM"),
        (["env=mixed-slo-hours", "scenario.horizon_s="], "expected scenario.FIELD=VALUE"),
        (["seeds=1"], "env= is missing"),
    ],
)
def test_slips_are_one_line_and_nothing_else(
    words: list[str], said: str, refused: Callable[..., str]
):
    assert said in refused(main, words)
