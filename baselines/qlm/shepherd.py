"""SHEPHERD's placement, as QLM describes it when it compares with it.

What QLM's paper says (its only source here; SHEPHERD itself is Zhang et al., NSDI 2023): an ILP for ordering
and placement that "assumes fixed batches with deterministic execution times" (section 8), which
over-estimates waiting and so keeps interactive and batch requests apart (section 1), and which "altogether
forgoes serving multiple models on the same instance" (section 1).

Ours, where it is silent:

- Execution time of a batch: prefill and `decode_s_per_token` for every output token of the longest
  request that could be in it, the LLM's maximum (`output="mean"`: its mean).
- Instances run one fixed batch after the other: batch l begins after l executions, and its requests' first
  tokens come a prefill later. So an instance has so many places for requests whose SLO ends by then, and
  since the places of a tighter SLO are among those of a looser one, counting them per SLO is exact: the
  programme needs whole numbers of instances per kind and LLM, and of batches per kind and stream.
- It maximises requests within their SLO; of equally good placements the one that keeps loaded LLMs. Instances
  that are left go where most requests are late, one LLM each.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from baselines.solver import SolverSettings, import_pulp, run, variable

Output = Literal["maximum", "mean"]


def execution_s(
    prefill_s: ArrayLike,
    decode_s_per_token: ArrayLike,
    max_output: ArrayLike,
    mean_output: ArrayLike,
    output: Output = "maximum",
) -> NDArray[np.float64]:
    """Deterministic execution time of a fixed batch; the arguments broadcast.

    Args:
        prefill_s: of the whole batch.
        decode_s_per_token: one iteration of it.
        max_output, mean_output: tokens.
        output: which of them every request is taken to have. The paper's is the maximum.

    Raises:
        ValueError: another word for `output`.
    """
    if output not in ("maximum", "mean"):
        raise ValueError(f"output = {output!r}: must be 'maximum' or 'mean'")
    tokens = np.asarray(max_output if output == "maximum" else mean_output, np.float64)
    return np.asarray(prefill_s, np.float64) + np.asarray(decode_s_per_token, np.float64) * tokens


@dataclass(frozen=True, eq=False)
class PlacementProblem:
    """Streams of requests and instances with fixed batches: S streams, G instances, M LLMs.

    Attributes:
        llm: (S,) LLM of each stream, an (LLM, class) or a request group.
        slo_s: (S,) what is left of its TTFT target.
        requests: (S,) whole numbers of requests.
        batch: (G, M) requests in a batch; 0: the instance cannot serve the LLM.
        execution_s: (G, M) of a batch, see `execution_s`.
        prefill_s: (G, M) until the first tokens of a batch.
        swap_s: (G, M) time to load an LLM that is not loaded.
        loaded: (G,) LLM that each serves now, -1: none.
        ready_s: (G,) until it can begin. None: 0.

    Raises:
        ValueError: a wrong shape or a value out of range.
    """

    llm: NDArray[np.int64]
    slo_s: NDArray[np.float64]
    requests: NDArray[np.int64]
    batch: NDArray[np.int64]
    execution_s: NDArray[np.float64]
    prefill_s: NDArray[np.float64]
    swap_s: NDArray[np.float64]
    loaded: NDArray[np.int64]
    ready_s: NDArray[np.float64] | None = None

    def __post_init__(self) -> None:
        put = object.__setattr__
        for name in ("llm", "requests", "batch", "loaded"):
            put(self, name, np.asarray(getattr(self, name), np.int64))
        for name in ("slo_s", "execution_s", "prefill_s", "swap_s"):
            put(self, name, np.asarray(getattr(self, name), np.float64))
        if self.batch.ndim != 2 or self.llm.ndim != 1:
            raise ValueError("batch must have two axes, instances first, and llm one")
        g, m = self.batch.shape
        ready = np.zeros(g) if self.ready_s is None else np.asarray(self.ready_s, np.float64)
        put(self, "ready_s", ready)
        shapes = {"slo_s": self.llm.shape, "requests": self.llm.shape, "loaded": (g,)}
        shapes |= dict.fromkeys(("execution_s", "prefill_s", "swap_s"), (g, m))
        for name, wanted in (shapes | {"ready_s": (g,)}).items():
            if getattr(self, name).shape != wanted:
                raise ValueError(f"{name} has shape {getattr(self, name).shape}: must be {wanted}")
        able = self.batch > 0
        for name, good, said in (
            ("llm", (self.llm >= 0) & (self.llm < m), f"in 0..{m - 1}"),
            ("loaded", (self.loaded >= -1) & (self.loaded < m), f"in -1..{m - 1}"),
            ("requests", self.requests >= 0, "at least 0"),
            ("batch", self.batch >= 0, "at least 0"),
            ("slo_s", np.isfinite(self.slo_s), "finite"),
            ("execution_s", ~able | _real(self.execution_s, 1e-9), "positive and finite"),
            ("prefill_s", ~able | _real(self.prefill_s), "at least 0 and finite"),
            ("swap_s", ~able | _real(self.swap_s), "at least 0 and finite"),
            ("ready_s", _real(ready), "at least 0 and finite"),
        ):
            if not good.all():
                value = getattr(self, name)[~good].reshape(-1)[0]
                raise ValueError(f"{name} = {value}: must be {said}")

    def places(self, instance: int, stream: int) -> int:
        """Batches of a stream that could begin on an instance, if it served nothing else, and be on time."""
        m = int(self.llm[stream])
        if self.batch[instance, m] == 0:
            return 0
        assert self.ready_s is not None
        begin = float(self.ready_s[instance]) + float(self.prefill_s[instance, m])
        begin += float(self.swap_s[instance, m]) if self.loaded[instance] != m else 0.0
        room = float(self.slo_s[stream]) - begin
        if room < 0:
            return 0
        return math.floor(room / float(self.execution_s[instance, m]) + 1e-9) + 1


@dataclass(frozen=True, eq=False)
class Placement:
    """Where SHEPHERD puts LLMs and streams.

    Attributes:
        llm: (G,) LLM of each instance, -1: none.
        on_time: (S,) requests of each stream that it counts on serving within their SLO.
        batches: (G, S) batches of each stream on each instance that are on time. An instance serves its
            batches by SLO, and what is late after them.
        unplaced: streams whose LLM is on no instance.
        optimal: it is proved that no placement has more requests within their SLO.
    """

    llm: NDArray[np.int64]
    on_time: NDArray[np.int64]
    batches: NDArray[np.int64]
    unplaced: tuple[int, ...]
    optimal: bool


def place(problem: PlacementProblem, settings: SolverSettings | None = None) -> Placement:
    """The placement with the most requests within their SLO, one LLM per instance at most.

    Args:
        problem: streams and instances.
        settings: of the solver.

    Raises:
        SolverMissing: no PuLP, or no solver for it.
        RuntimeError: the solver found nothing within its limits.
    """
    pulp = import_pulp()
    instances, llms = problem.batch.shape
    streams = range(len(problem.llm))
    kinds = _kinds(problem)
    programme = pulp.LpProblem("shepherd", pulp.LpMaximize)
    count: dict[tuple[int, int], Any] = {}
    batches: dict[tuple[int, int], Any] = {}
    served = {
        s: variable(programme, f"served_{s}", high=float(problem.requests[s])) for s in streams
    }
    supply: dict[int, list[Any]] = {s: [] for s in streams}
    keep = []
    for k, members in enumerate(kinds):
        first = members[0]
        for m in range(llms):
            if problem.batch[first, m] == 0:
                continue
            count[k, m] = n = variable(programme, f"count_{k}_{m}", high=float(len(members)))
            n.cat = pulp.LpInteger
            if problem.loaded[first] == m:
                keep.append(n)
            mine = sorted(
                (s for s in streams if problem.llm[s] == m), key=problem.slo_s.__getitem__
            )
            ahead: Any = 0
            for s in mine:
                batches[k, s] = b = variable(programme, f"batches_{k}_{s}")
                b.cat = pulp.LpInteger
                ahead = ahead + b
                programme += ahead <= problem.places(first, s) * n
                supply[s].append(int(problem.batch[first, m]) * b)
        programme += pulp.lpSum(count[k, m] for m in range(llms) if (k, m) in count) <= len(members)
    for s in streams:
        programme += served[s] <= pulp.lpSum(supply[s])
    # Together the second and third part never outweigh one request.
    waste = 1 + sum(
        len(members) * max((problem.places(members[0], s) for s in streams), default=0)
        for members in kinds
    )
    programme.setObjective(
        pulp.lpSum(served.values())
        + 0.5 / instances * pulp.lpSum(keep)
        - 0.25 / (instances * waste) * pulp.lpSum(batches.values())
    )
    outcome = run(programme, settings or SolverSettings(gap=1e-6))
    if not outcome.found:
        raise RuntimeError("SHEPHERD's placement: the solver found nothing; raise time_limit_s")

    llm = np.full(instances, -1, np.int64)
    done = np.zeros((instances, len(problem.llm)), np.int64)
    for k, members in enumerate(kinds):
        free = list(members)
        for m in range(llms):
            if (k, m) not in count:
                continue
            mine, free = _split(free, round(count[k, m].varValue))
            llm[mine] = m
            for s in sorted(
                (s for s in streams if problem.llm[s] == m), key=problem.slo_s.__getitem__
            ):
                _deal(problem, done, mine, s, round(batches[k, s].varValue))
    supply_of = np.array(
        [int(done[:, s] @ problem.batch[:, problem.llm[s]]) for s in streams], np.int64
    )
    on_time = np.minimum(problem.requests, supply_of)
    _fill_idle(problem, llm, on_time)
    return Placement(
        llm=llm,
        on_time=on_time,
        batches=done,
        unplaced=tuple(s for s in streams if not (llm == problem.llm[s]).any()),
        optimal=outcome.optimal,
    )


# ---- parts ----


def _kinds(problem: PlacementProblem) -> list[list[int]]:
    """Instances that are alike in everything."""
    assert problem.ready_s is not None
    kinds: dict[bytes, list[int]] = {}
    for g in range(len(problem.loaded)):
        rows = (problem.batch[g], problem.execution_s[g], problem.prefill_s[g], problem.swap_s[g])
        own = np.array([problem.loaded[g], problem.ready_s[g]])
        kinds.setdefault(np.concatenate([*rows, own]).tobytes(), []).append(g)
    return list(kinds.values())


def _split(members: list[int], count: int) -> tuple[list[int], list[int]]:
    return members[:count], members[count:]


def _deal(
    problem: PlacementProblem, done: NDArray[np.int64], members: list[int], stream: int, count: int
) -> None:
    """Batches of a stream one by one to the alike instance with the fewest, streams by SLO."""
    for _ in range(count):
        g = min(members, key=lambda instance: int(done[instance].sum()))
        done[g, stream] += 1


def _fill_idle(
    problem: PlacementProblem, llm: NDArray[np.int64], on_time: NDArray[np.int64]
) -> None:
    """Gives instances without an LLM the one with the most late requests per instance that has it."""
    late = np.bincount(
        problem.llm, problem.requests - on_time, minlength=problem.batch.shape[1]
    ).astype(np.float64)
    for g in np.flatnonzero(llm == -1).tolist():
        have = np.bincount(llm[llm >= 0], minlength=len(late))
        share = np.where(problem.batch[g] > 0, late / (have + 1), 0.0)
        if share.max(initial=0.0) > 0:
            llm[g] = int(share.argmax())


def _real(values: NDArray[np.float64], low: float = 0.0) -> NDArray[np.bool_]:
    return np.isfinite(values) & (values >= low)
