"""The bound of an episode: from a scenario and a seed to the programme and back."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from baselines.clairvoyant.demand import Needs, find_needs
from baselines.clairvoyant.prices import Ints, Prices, find_prices, machines
from baselines.clairvoyant.programme import Flow, Group, Problem, solve
from baselines.solver import SolverSettings
from llmscale_env.control.reward import draw_requests
from llmscale_env.scenarios.schema import Scenario
from llmscale_env.sim.compile import compile_cluster, ps
from llmscale_env.sim.spec import ClusterSpec
from llmscale_env.workload.requests import PS_PER_S, RequestTable

Floats = NDArray[np.float64]

SOLVER_MARGIN = 1e-6
"""Share taken off the programme's value, for the solver's tolerances (1e-7 of a row)."""

_SINGLE = 300
"""Up to so many requests, each is a group of its own."""

_GROUP_S = 60.0
_GROUP_RATIO = 1.25
"""Requests are alike if due within so long, with prompts and outputs within this ratio."""

_OUTPUT_RATIO = 2.0
"""Requests whose outputs are within this ratio share the flows of decoding."""


class NotSupported(ValueError):
    """A scenario for which the bound is not proven; the message names the field."""


@dataclass(frozen=True)
class Bound:
    """The least GPU time that could serve an episode.

    Attributes:
        status: "optimal"; "infeasible": nobody can attain that; "unsolved": the solver gave up.
        gpu_s: GPU-seconds that every policy is billed at least which attains the share in every class;
            infinite if nobody can, 0 if the solver gave up.
        time_s: (T,) starts of the slots.
        gpus: (T,) GPUs that serve in the programme's answer, means over the slots (NaN without an answer).
        loading_gpu_s: GPU-seconds of `gpu_s` for loading.
        prefill_gpu_s: what the prompts of all requests that can be on time are charged.
        decode_gpu_s: what their decoding is charged, by the best single price.
        requests, possible: that arrive, that can be on time at all.
        may_miss: by class, how many of the possible ones may be late.
        size: variables and rows of the programme.
    """

    status: str
    gpu_s: float
    time_s: Floats
    gpus: Floats
    loading_gpu_s: float
    prefill_gpu_s: float
    decode_gpu_s: float
    requests: int
    possible: int
    may_miss: tuple[int, ...]
    size: tuple[int, int]

    @property
    def gpu_hours(self) -> float:
        return self.gpu_s / 3600


def clairvoyant_bound(
    scenario: Scenario,
    seed: int = 0,
    attainment: float = 0.99,
    slot_s: float = 10.0,
    *,
    requests: RequestTable | None = None,
    settings: SolverSettings | None = None,
) -> Bound:
    """GPU-seconds that every policy is billed at least, if it has that share of every class on time.

    docs/clairvoyant.md has the proof.

    Args:
        scenario: of one LLM, whose pools may differ.
        seed: of the requests, as `run_episode` has it.
        attainment: share of the arrivals of each class that are on time.
        slot_s: length of a slot. Halves of slots give no lower a bound, and more work.
        requests: a table in place of the drawn one.
        settings: of the solver.

    Raises:
        NotSupported: the scenario has what the proof does not cover.
        ValueError: an argument is out of range.
        SolverMissing: no PuLP, or no solver for it.
    """
    if not 0 < attainment <= 1:
        raise ValueError(f"attainment = {attainment}: must be above 0 and at most 1")
    if not 0.01 <= slot_s <= scenario.horizon_s:
        raise ValueError(
            f"slot_s = {slot_s}: must be in 0.01..{scenario.horizon_s:g} (the horizon)"
        )
    check_supported(scenario)
    cluster = compile_cluster(scenario, custom_router=_NoRouter())
    if requests is None:
        requests = draw_requests(scenario, np.random.default_rng(seed))
    kinds = machines(cluster)
    horizon_ps = ps(scenario.horizon_s)
    needs = find_needs(requests, cluster, kinds, horizon_ps)
    may_miss = needs.may_miss(attainment)
    slots = math.ceil(scenario.horizon_s / slot_s - 1e-9)
    ends_ps = np.minimum(np.array([ps(slot_s * (t + 1)) for t in range(slots)]), horizon_ps)
    start_ps = np.concatenate([[0], ends_ps[:-1]])
    arrived = int(needs.arrivals.sum())
    nothing = np.full(slots, np.nan)

    def answer(
        status: str, gpu_s: float, gpus: Floats, loading: float, size: tuple[int, int]
    ) -> Bound:
        return Bound(
            status,
            gpu_s,
            start_ps / PS_PER_S,
            gpus,
            loading,
            prefill_s,
            decode_s,
            arrived,
            len(needs),
            tuple(may_miss.tolist()),
            size,
        )

    prefill_s = decode_s = 0.0
    if (may_miss < 0).any():
        return answer("infeasible", math.inf, nothing, 0.0, (0, 0))
    if len(needs) == 0:
        return answer("optimal", 0.0, np.zeros(slots), 0.0, (0, 0))
    prices = find_prices(
        kinds,
        needs.tokens,
        needs.context,
        needs.prompt,
        least=needs.shortest + 1,
    )
    prefill_s = float(prices.prefill_ps(needs.prompt).sum()) / PS_PER_S
    decode_s = float(prices.decode_ps(needs.tokens, needs.context).sum(axis=1).max()) / PS_PER_S
    flows, groups = _work(needs, prices, ends_ps, slot_s)
    problem = Problem(
        length_s=(ends_ps - start_ps) / PS_PER_S,
        most=_most(cluster, start_ps, ends_ps),
        initial=float(sum(pool.initial_active * pool.gpus for pool in cluster.pools)),
        load_s=min(min(pool.load_ps) for pool in cluster.pools) / PS_PER_S,
        flows=flows,
        groups=groups,
        may_miss=may_miss.tolist(),
    )
    found = solve(problem, settings or SolverSettings(time_limit_s=600.0, method="ipm"))
    if found.status != "optimal":
        # An infeasible relaxation: nobody can.
        least = math.inf if found.status == "infeasible" else 0.0
        return answer(found.status, least, nothing, 0.0, found.size)
    gpu_s = max(0.0, found.gpu_s * (1 - SOLVER_MARGIN))
    return answer("optimal", gpu_s, found.gpus, found.starts * problem.load_s, found.size)


def check_supported(scenario: Scenario) -> None:
    """Raises NotSupported for what the proof does not cover."""
    fleet = scenario.fleet
    if len(fleet.llms) > 1:
        raise NotSupported(
            f"fleet.pools serve {list(fleet.llms)}: the clairvoyant bound is for one LLM"
        )
    for pool in fleet.pools:
        if pool.v1 is not None and pool.v1.prefix_cache:
            raise NotSupported(
                f"fleet.pools.{pool.name}: v1.prefix_cache: the clairvoyant bound is for prompts that are "
                "computed whole"
            )
        for name, used in (
            ("weights = 'flow'", pool.flows),
            ("spot", pool.spot is not None),
            ("twin_of", pool.twin_of is not None),
        ):
            if used:
                raise NotSupported(
                    f"fleet.pools.{pool.name}: {name}: the clairvoyant bound is for instances whose loading "
                    "takes a time of its own"
                )


class _NoRouter:
    """In the place of a custom router: which one it is does not matter here."""


def _most(cluster: ClusterSpec, start_ps: Ints, ends_ps: Ints) -> Floats:
    """(T,) GPUs that can serve on average: no more than the initial ones until one can have been loaded."""
    initial = sum(pool.initial_active * pool.gpus for pool in cluster.pools)
    top = min(cluster.max_gpus, sum(pool.n_slots * pool.gpus for pool in cluster.pools))
    first_ps = min(pool.acquire_ps + min(pool.load_ps) for pool in cluster.pools)
    before = np.clip(first_ps - start_ps, 0, ends_ps - start_ps) / (ends_ps - start_ps)
    found: Floats = initial * before + max(top, initial) * (1 - before)
    return found


def _work(
    needs: Needs, prices: Prices, ends_ps: Ints, slot_s: float
) -> tuple[list[Flow], list[Group]]:
    """The work, and who may be late.

    Flows: prefill by class, in GPU-seconds; decoded tokens by class and length of output, in thousands;
    their context, in millions.
    """
    slots = len(ends_ps)
    k = len(prices.per_request_ps)
    prompt_s = prices.prefill_ps(needs.prompt) / PS_PER_S
    # A slot's work can be done by its end if it has come by then; it is due in the slot that its time is in,
    # or ends with.
    come_first: Ints = np.searchsorted(ends_ps, needs.arrival, side="right")
    due_first = np.searchsorted(ends_ps, needs.due_first, side="left")
    come_last = np.searchsorted(ends_ps, needs.ready, side="right")
    due_last = np.searchsorted(ends_ps, needs.due_last, side="left")
    units = (1e3, 1e6)  # so that numbers are near 1

    flows: list[Flow] = []

    def add(some: Ints, amount: Floats, charge: Floats, come: Ints, due: Ints) -> int:
        flows.append(
            Flow(
                charge,
                np.bincount(come[some], amount, minlength=slots)[:slots].cumsum(),
                np.bincount(due[some], amount, minlength=slots)[:slots].cumsum(),
            )
        )
        return len(flows) - 1

    bucket = np.floor(np.log(np.maximum(needs.tokens, 1)) / np.log(_OUTPUT_RATIO)).astype(np.int64)
    bucket[needs.tokens == 0] = -1
    prefill_flow = np.full(len(needs), -1)
    token_flow = np.full(len(needs), -1)
    for c in range(len(needs.arrivals)):
        some = np.flatnonzero(needs.slo_class == c)
        if len(some) == 0:
            continue
        prefill_flow[some] = add(some, prompt_s[some], np.ones(k), come_first, due_first)
        for each in np.unique(bucket[some]):
            if each < 0:
                continue
            mine = some[bucket[some] == each]
            token_flow[mine] = add(
                mine,
                needs.tokens[mine] / units[0],
                prices.per_request_ps / PS_PER_S * units[0],
                come_last,
                due_last,
            )
            add(
                mine,
                needs.context[mine] / units[1],
                prices.per_context_ps / PS_PER_S * units[1],
                come_last,
                due_last,
            )
    # Groups.
    n = len(needs)
    if n <= _SINGLE:
        group_of = np.arange(n)
    else:
        block = (needs.due_first // ps(_GROUP_S)).astype(np.int64)
        step = np.log(_GROUP_RATIO)
        cells = np.stack(
            [
                needs.slo_class,
                block,
                np.floor(np.log(needs.prompt) / step).astype(np.int64),
                np.floor(np.log(np.maximum(needs.tokens, 1)) / step).astype(np.int64),
                token_flow,
            ]
        )
        _, group_of = np.unique(cells, axis=1, return_inverse=True)
        group_of = group_of.ravel()
    groups = []
    order = np.argsort(group_of, kind="stable")
    for some in np.split(order, np.flatnonzero(np.diff(group_of[order])) + 1):
        first = int(some[0])
        takes = [
            (int(prefill_flow[first]), int(due_first[some].min()), float(prompt_s[some].max()))
        ]
        if token_flow[first] >= 0:
            f, t = int(token_flow[first]), int(due_last[some].min())
            takes.append((f, t, float(needs.tokens[some].max() / units[0])))
            takes.append((f + 1, t, float(needs.context[some].max() / units[1])))
        groups.append(Group(int(needs.slo_class[first]), len(some), tuple(takes)))
    return flows, groups
