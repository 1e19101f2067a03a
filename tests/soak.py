"""Fresh generated cases of every kind, on both engines, to their end (docs/validation.md).

    python -m tests.soak [cases=10000] [seed=N] [kind=NAME,...] [processes=2] [record=true]

    cases      in all; each kind has an equal share
    seed       of the first case of each kind, the next ones count up; not given: a fresh one
    kind       whole, qlm, split, weights, live, regions, v1, custom, long; not given: all of them
    processes  how many work side by side
    record     add a row to the table of docs/validation.md: for a drawn seed and committed code only

The seed is printed first. A difference comes with the words that run its case alone; the exit code is then 1.
"""

from __future__ import annotations

import re
import secrets
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from itertools import chain
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from agents.runs.files import git_revision
from llmscale_env._cli import Slip, flag, parse_options, run_command, some_of, whole
from llmscale_env._writing import write_text
from llmscale_env.sim.custom_router import N_FEATURES, router
from llmscale_env.sim.spec import NEVER, ClusterSpec, PoolPhase, RouterKind
from llmscale_env.sim.spec.regions import ScalingKind
from tests.engine_cases import (
    MECHANISMS,
    Case,
    Command,
    Trace,
    _Generator,
    all_done,
    make_case,
    mechanisms,
)
from tests.region_cases import (
    REGION_MECHANISMS,
    _RegionGenerator,
    make_region_case,
)
from tests.split_cases import SPLIT_MECHANISMS, _SplitGenerator, make_split_case
from tests.test_engines_agree import TO_REACH_ALL, compared
from tests.v1_cases import NEW, V1_MECHANISMS, _V1Generator, make_v1_case, repeated
from tests.weight_cases import (
    LIVE_MECHANISMS,
    WEIGHT_MECHANISMS,
    _WeightGenerator,
    make_weight_case,
)

PAGE = Path(__file__).resolve().parents[1] / "docs" / "validation.md"
CHUNK = 25
"""Cases that a process runs before it tells of them."""

DOUBLINGS = 8
"""How often time doubles after a case's last command at most."""

EASY = (RouterKind.ROUND_ROBIN, RouterKind.JSQ_REQUESTS, RouterKind.JSQ_TOKENS, RouterKind.LEAST_KV)
"""Rules that any other may stand in for."""

MOST_TRIPS = 1000
"""Trips between regions that a long case has time for, where requests may travel without end."""

# --- custom routers ---


@cache
def drawn_router(number: int, queue_allowed: bool) -> Any:
    """A compiled router that weighs all features, by weights and a hash of its own."""
    rng = np.random.default_rng([number, 4])
    weights = tuple(float(w) for w in rng.integers(-3, 4, N_FEATURES))
    salt, period = int(rng.integers(1, 1000)), int(rng.integers(2, 9))

    def chosen(features, n, request_id, input_tokens, predicted, slo_class):  # type: ignore[no-untyped-def]
        mixed = request_id * salt + input_tokens + predicted
        if mixed % period == slo_class:
            return -1 if queue_allowed else mixed % n
        best, least = 0, 0.0
        for k in range(n):
            score = features[k, 2] / features[k, 3]
            for f in range(N_FEATURES):
                score += weights[f] * features[k, f] / (1.0 + features[k, 5])
            if k == 0 or score < least:
                best, least = k, score
        return best

    return router(chosen)


def make_custom_case(seed: int) -> Case:
    """A case of any other kind in which most routes ask a function of the user's, others one of `NEW`."""
    case = SOURCES[seed % len(SOURCES)](seed).case()
    rng = np.random.default_rng([seed, 4])
    routed = [route for row in case.spec.routes for route in row if route.pools]
    number = int(rng.integers(24))
    queues = all(route.queue >= 0 and not route.decode_pools for route in routed)

    def custom(kind: int, there: Sequence[int]) -> int:
        return RouterKind.CUSTOM if len(there) and rng.random() < 0.7 else kind

    def known(kind: int, there: Sequence[int]) -> int:
        return int(rng.choice(NEW)) if len(there) and kind in EASY and rng.random() < 0.7 else kind

    def asking(spec: ClusterSpec) -> ClusterSpec:
        rows = [
            tuple(
                replace(
                    route,
                    kind=known(custom(route.kind, route.pools), route.pools),
                    decode_kind=custom(route.decode_kind, route.decode_pools),
                )
                for route in row
            )
            for row in spec.routes
        ]
        return replace(spec, routes=tuple(rows), custom_router=drawn_router(number, queues))

    return replace(case, spec=asking(case.spec))


# --- long horizons ---


def make_long_case(seed: int) -> Case:
    """A case of any other kind that lasts hours to all of time, what happens in it several times over."""
    rng = np.random.default_rng([seed, 5])
    generator = SOURCES[seed % len(SOURCES)](seed)
    generator.tiny, generator.unit_ps = False, int(10 ** rng.uniform(10, 12))
    case, latest_ps = generator.case(), int(NEVER) - 1
    once_ps = max(case.stops_ps[-2], int(case.requests.arrival_ps[-1]))
    times = int(rng.integers(2, 9))
    period_ps = min(int(once_ps * 10 ** rng.uniform(0, 4)), latest_ps // times)
    table, spec = case.requests, case.spec
    if spec.latency is not None and any(pool.scaling for pool in spec.pools):
        # A rule may stop, trip after trip, the instance that requests are on their way to.
        trip_ps = max(map(max, chain.from_iterable(spec.latency.knots_ps)))
        period_ps = min(period_ps, max(once_ps, MOST_TRIPS * trip_ps // times))
    shifts = [k * period_ps for k in range(times)]
    columns = ("llm", "region", "slo_class", "input_tokens", "output_tokens")
    columns += ("predicted_output_tokens",)
    stops = {stop + shift for shift in shifts for stop in case.stops_ps[:-1]}
    end_ps = min(case.stops_ps[-1] + shifts[-1], latest_ps)
    if spec.managers:  # the reference engine looks at every single signal
        spec = replace(spec, manager_period_ps=max(spec.manager_period_ps, end_ps // 3000))
    return Case(
        spec,
        replace(
            table,
            arrival_ps=np.concatenate([table.arrival_ps + shift for shift in shifts]),
            **{name: np.tile(getattr(table, name), times) for name in columns},
            prefixes=repeated(table.prefixes, times),
        ),
        tuple(replace(c, at_ps=c.at_ps + shift) for shift in shifts for c in case.script),
        (*sorted(stops), end_ps),
        case.observes,
    )


SOURCES: tuple[Callable[[int], Any], ...] = (
    _Generator,
    lambda seed: _Generator(seed, qlm=True),
    _SplitGenerator,
    _WeightGenerator,
    lambda seed: _WeightGenerator(seed, live=True),
    _RegionGenerator,
    _V1Generator,
)
"""Where custom and long cases come from."""

# --- the comparison ---


def to_its_end(case: Case) -> Case:
    """The case with orders at its last stop by which whoever still waits can be served."""
    spec, jsq = case.spec, int(RouterKind.JSQ_REQUESTS)
    orders: list[tuple[Any, ...]] = []
    for m, row in enumerate(spec.routes):
        for c, route in enumerate(row):
            if route.pools and route.kind != RouterKind.CUSTOM:
                orders.append(("set_router", m, c, jsq))
            if route.decode_pools and route.decode_kind != RouterKind.CUSTOM:
                orders.append(("set_decode_router", m, c, jsq))
    orders += [
        ("set_scaling", p, int(ScalingKind.NONE), -1, 0, None)
        for p, pool in enumerate(spec.pools)
        if pool.scaling
    ]
    orders += [("set_target", p, pool.n_slots, None) for p, pool in enumerate(spec.pools)]
    for i, p in enumerate(spec.pool_of_slot):
        llms = (-1, *spec.pools[p].llms)
        if spec.pools[p].phase != PoolPhase.DECODE:
            queues = tuple(q for q, m in enumerate(spec.queue_llm) if m in llms)
            orders.append(("set_pull", i, queues))
    orders += [("route_gateway", m) for m in range(spec.n_llms)]
    last = case.stops_ps[-1]
    script = (*case.script, *(Command(last, name, tuple(args)) for name, *args in orders))
    return replace(case, script=script)


class Kind(NamedTuple):
    """Cases of one kind, and what a good set of them makes happen."""

    make: Callable[[int], Case]
    among: frozenset[str] = frozenset()


KINDS = {
    "whole": Kind(make_case, MECHANISMS),
    "qlm": Kind(lambda seed: make_case(seed, qlm=True)),
    "split": Kind(make_split_case, SPLIT_MECHANISMS),
    "weights": Kind(make_weight_case, WEIGHT_MECHANISMS),
    "live": Kind(lambda seed: make_weight_case(seed, live=True), LIVE_MECHANISMS),
    "regions": Kind(make_region_case, REGION_MECHANISMS),
    "v1": Kind(make_v1_case, V1_MECHANISMS),
    "custom": Kind(make_custom_case),
    "long": Kind(make_long_case),
}


def run_one(kind: str, seed: int) -> tuple[set[str], str]:
    """Both engines run a case to its end; returns the mechanisms at work, and how it ended.

    Raises:
        AssertionError: the engines differ, or a law is broken.
    """
    case = to_its_end(KINDS[kind].make(seed))
    engine, trace = compared(seed, case, DOUBLINGS)
    return mechanisms(engine, case, trace, KINDS[kind].among), _how_it_ended(trace)


def _how_it_ended(trace: Trace) -> str:
    if all_done(trace.results):
        return "every request done"
    return "nothing moves any more" if trace.at_rest else "still moving"


class Chunk(NamedTuple):
    """What a process found in some cases of a kind."""

    kind: str
    n: int
    reached: set[str]
    ends: Counter[str]
    differences: list[tuple[int, str]]


def run_chunk(kind: str, seeds: range) -> Chunk:
    chunk = Chunk(kind, len(seeds), set(), Counter(), [])
    for seed in seeds:
        try:
            reached, end = run_one(kind, seed)
        except AssertionError as error:
            chunk.differences.append((seed, str(error)))
        except Exception:
            chunk.differences.append((seed, traceback.format_exc()))
        else:
            chunk.reached.update(reached)
            chunk.ends[end] += 1
    return chunk


def chunks_of(kinds: Sequence[str], cases: int, seed: int) -> list[tuple[str, range]]:
    """Shares of all kinds, in turn."""
    shares = {kind: (cases + k) // len(kinds) for k, kind in enumerate(kinds)}
    starts = range(0, max(shares.values()), CHUNK)
    return [
        (kind, range(seed + start, seed + min(start + CHUNK, share)))
        for start in starts
        for kind, share in shares.items()
        if start < share
    ]


def soak(work: Sequence[tuple[str, range]], processes: int) -> Iterable[Chunk]:
    """Run the chunks, in this process if there is to be one only."""
    if processes == 1:
        yield from (run_chunk(*words) for words in work)
        return
    run_chunk(work[0][0], work[0][1][:1])  # compiles, so that the processes need not
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        for done in as_completed([pool.submit(run_chunk, *words) for words in work]):
            yield done.result()


# --- the record ---

COUNTER = re.compile(r"\*\*[\d,]+ fresh cases\*\* in [\d,]+ runs, [\d,]+ differences")
NEXT_ROW = "<!-- next run -->"


def rows_of(page: str) -> list[list[str]]:
    """Cells of the table's rows."""
    table = page.partition(NEXT_ROW)[0].rpartition("|---")[2].splitlines()[1:]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in table]


def counted(page: str) -> str:
    """The counter that belongs to a page's table."""
    rows = rows_of(page)
    cases = sum(int(cell) for row in rows for cell in row[3:-1])
    differences = sum(int(row[-1]) for row in rows)
    return f"**{cases:,} fresh cases** in {len(rows)} runs, {differences} differences"


def recorded(page: str, cells: Sequence[object]) -> str:
    """A page with one more row in its table, and the counter that belongs to it."""
    row = f"| {' | '.join(map(str, cells))} |\n"
    page = page.replace(NEXT_ROW, row + NEXT_ROW)
    return COUNTER.sub(lambda _: counted(page), page)


def main(words: Sequence[str] | None = None) -> int:
    """Run the command; 0 when both engines agree, 1 when not, 2 for a slip."""
    return run_command("soak", __doc__, words, _run, wordless=True)


def _run(words: list[str]) -> int:
    options = parse_options(words, ("cases", "seed", "kind", "processes", "record"))
    kinds = some_of(options, "kind", tuple(KINDS))
    cases = whole(options, "cases", 10_000, 1, 10**9)
    processes = whole(options, "processes", 2, 1, 1000)
    seed = whole(options, "seed", secrets.randbelow(2**40), 0, 2**62)
    record, revision = flag(options, "record"), git_revision()
    if record and "seed" in options:
        raise Slip("record = true: is for fresh cases, whose seed is drawn; leave seed= out")
    if record and revision.endswith("-dirty"):
        raise Slip(f"record = true: {revision}: commit what differs first")
    print(
        f"soak: seed={seed} cases={cases} kind={','.join(kinds)}, revision {revision}", flush=True
    )
    done, ends, differences = Counter[str](), Counter[str](), 0
    reached: dict[str, set[str]] = {kind: set() for kind in kinds}
    for chunk in soak(chunks_of(kinds, cases, seed), processes):
        for wrong, said in chunk.differences:
            differences += 1
            alone = f"python -m tests.soak kind={chunk.kind} seed={wrong} cases=1"
            print(f"DIFFERENCE: {said}\n  alone: {alone}", flush=True)
        before = sum(done.values())
        done[chunk.kind] += chunk.n
        ends.update(chunk.ends)
        reached[chunk.kind] |= chunk.reached
        if before // 1000 < sum(done.values()) // 1000:
            print(f"soak: {sum(done.values())} cases, {differences} differences", flush=True)
    for kind in kinds:
        missing = sorted(KINDS[kind].among - reached[kind])
        if missing and done[kind] >= TO_REACH_ALL:
            print(f"soak: no case of {kind} reached {', '.join(missing)}")
    said = ", ".join(f"{end}: {n}" for end, n in ends.most_common())
    print(f"soak: {sum(done.values())} cases ({said}), {differences} differences")
    if record:
        each = [done[kind] for kind in KINDS]
        cells = (datetime.now(UTC).date(), revision[:10], seed, *each, differences)
        write_text(PAGE, recorded(PAGE.read_text(encoding="utf-8"), cells))
    return int(differences > 0)


if __name__ == "__main__":
    sys.exit(main())
