"""From numbers of instances to loads: on fleets made by hand, and carried out by the engine."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

from llmscale_env.control.command import Command, CommandError
from llmscale_env.control.scaling import FleetSeen, Scaler
from llmscale_env.control.simulation import ClusterSimulation
from llmscale_env.sim.orders import Loads
from llmscale_env.sim.spec import FROM_SSD, InstanceState
from tests.refusals import refuses
from tests.small_tables import requests_of
from tests.test_weights_scenarios import DECODE, LLM, PREFILL, scenario

ACTIVE, OFF, LOADING, DRAINING = (
    InstanceState.ACTIVE,
    InstanceState.OFF,
    InstanceState.LOADING,
    InstanceState.DRAINING,
)
FLAT = {"machine": "blitzscale-a", "startup_s": 0, "nvlink": False}
HOME = 32
"""Code of machine 0's memory, of 16 slots twice."""


def fleet(active: Any, home: int = 0, **more: Any) -> FleetSeen:
    """32 slots, prefill 0 to 15 and decode 16 to 31; 0 to 7 and 16 to 23 on machine 0."""
    state = np.full(32, OFF)
    state[list(active)] = ACTIVE
    fields: dict[str, Any] = {
        "state": state,
        "requests": np.zeros(32, np.int64),
        "waiting": np.zeros(32, np.int64),
        "source": np.full(32, -2),
        "partner": np.full(32, -1),
        "mutating": np.zeros(32, bool),
        "home": np.array([home]),
        "there": np.array([home >= 0]),
    }
    for name, values in more.items():
        for slot, value in values.items():
            fields[name][slot] = value
    return FleetSeen(**fields)


def edges(scaler: Scaler, seen: FleetSeen, slots: list[int], *prefer: str) -> Any:
    """(sender, target) pairs of the plan that loads these prefill slots."""
    plan = scaler.plan(seen, 0, slots, *prefer)
    assert plan is not None
    return plan.edges


@pytest.fixture
def flat() -> Scaler:
    return Scaler(scenario(network=FLAT, host_copies="one"))


@pytest.fixture
def joined() -> Scaler:
    return Scaler(scenario(host_copies="one"))


def test_nearest_gpus_come_first_and_load_over_nvlink(joined: Scaler) -> None:
    # A prefill instance on machine 1, a decode one there as well (their twins' GPUs are taken).
    found = joined.loads(fleet([8, 25]), {0: 2, 1: 1})
    # Free there: 10 to 15. The decode instance sends nothing, so it is the source.
    assert found == Loads((10, 11, 28), (25, 10, 11))


def test_planner_prunes_prefill_instances_and_uses_the_copy(flat: Scaler) -> None:
    found = flat.loads(fleet([0, 1]), {0: 1})
    # Both send KV caches; the copy of machine 0 is local to slot 2.
    assert found == Loads((2,), (HOME,))
    # All GPUs of machine 0 but one are taken; the copy, which is wider than one GPU, serves both others.
    seen = fleet([*range(8)])
    assert flat.loads(seen, {0: 2}) == Loads((8, 9), (HOME, HOME))
    # Without a copy somebody has to send, though it does already.
    assert flat.loads(fleet([0, 1], home=-1), {0: 1}) == Loads((2,), (0,))
    # A decode instance goes before.
    assert flat.loads(fleet([0, 31], home=-1), {0: 3}).sources[0] == 31


def test_preferences_and_what_they_give_way_to(flat: Scaler) -> None:
    seen = fleet([0, 30, 31], home=1)
    wanted = {0: 2}
    assert flat.loads(seen, wanted, prefer="ssd").sources == (FROM_SSD, FROM_SSD)
    # By bandwidth one after the other: each sends to one of the two; 8 and 9 are on the machine of the copy.
    decode = flat.loads(seen, wanted, prefer="decode")
    assert decode == Loads((8, 9), (30, 31))
    assert flat.loads(seen, wanted, prefer="decode", chains=1) == Loads((8, 9), (30, 8))
    assert flat.loads(seen, wanted, prefer="any", chains=2) == Loads((8, 9), (0, 30))
    assert flat.loads(seen, wanted, prefer="host") == Loads((8, 9), (HOME + 1, HOME + 1))
    assert flat.loads(fleet([0], home=1), wanted, prefer="decode").sources[0] == 0
    assert flat.loads(fleet([0], home=-1), wanted, prefer="host").sources[0] == 0
    assert flat.loads(fleet([], home=0), wanted, prefer="any").sources[0] == HOME
    assert flat.loads(fleet([], home=-1), wanted, prefer="any").sources == (FROM_SSD,) * 2
    # Who is about to stop sends nothing.
    assert flat.loads(seen, wanted, prefer="decode", going=[30]).sources[0] == 31


def test_one_who_sends_weights_already_is_pruned(flat: Scaler) -> None:
    seen = fleet([0, 30, 31], home=-1, state={5: LOADING}, source={5: 30})
    assert seen.sends_weights.tolist() == [i == 30 for i in range(32)]
    assert flat.loads(seen, {0: 1}).sources == (31,)


def test_unpruned_are_the_same_sources_without_pruning(flat: Scaler) -> None:
    # The copy, which has the network cards of all GPUs, goes first with pruning and without: no difference.
    seen = fleet([0, 30, 31], home=1)
    for wanted in (1, 3, 8):
        planned = flat.loads(seen, {0: wanted})
        assert flat.loads(seen, {0: wanted}, prefer="unpruned") == planned
        assert set(planned.sources) == {HOME + 1}
    # Prefill instance 0 and decode instances 30 and 31 have equal links: all of them send, by number.
    gone = fleet([0, 30, 31], home=-1)
    assert flat.loads(gone, {0: 3}).sources == (30, 31, 1)
    assert flat.loads(gone, {0: 3}, prefer="unpruned").sources == (0, 30, 31)
    # An instance that sends weights already is passed over by both: only KV caches count as nothing.
    busy = fleet([30, 31], home=-1, state={5: LOADING}, source={5: 30})
    assert flat.loads(busy, {0: 1}).sources == (31,)
    assert flat.loads(busy, {0: 1}, prefer="unpruned").sources == (31,)
    # So is a prefill instance that sends weights; another one, which sends KV caches alone, is taken.
    busy = fleet([0, 1, 31], home=-1, state={5: LOADING, 6: LOADING}, source={5: 0, 6: 31})
    assert flat.loads(busy, {0: 1}).sources == (5,)  # all send: the end of a chain
    assert flat.loads(busy, {0: 1}, prefer="unpruned").sources == (1,)
    # Loads leave a memory less to send, pruned or not: eight of them nothing.
    far = range(8, 16)
    full = fleet([24], state=dict.fromkeys(far, LOADING), source=dict.fromkeys(far, HOME))
    for prefer in ("planner", "unpruned"):
        assert edges(flat, full, [9], prefer) == ((24, 9),)


def test_copies_count_last(flat: Scaler) -> None:
    seen = fleet([0, 30, 31], home=1)
    last = flat.copies_last(seen)
    assert seen.there.tolist() == [True]
    # Also the GPUs near to the copy are no better than others: 1 and 2 in place of 8 and 9.
    assert flat.loads(last, {0: 2}) == Loads((1, 2), (30, 31))
    some = [30, 31]
    assert flat.loads(flat.copies_last(seen, some), {0: 1}, going=some) == Loads((1,), (0,))
    for nobody in (flat.copies_last(fleet([], home=1)), flat.copies_last(seen, [0, 30, 31])):
        assert set(flat.loads(nobody, {0: 2}, going=[0, 30, 31]).sources) == {HOME + 1}


def test_chains_get_longer_where_all_that_have_the_weights_send(flat: Scaler) -> None:
    state = {5: LOADING, 6: LOADING, 7: InstanceState.ACQUIRING}
    under_way: dict[str, Any] = {"state": state, "source": {5: 31, 6: 5}}
    assert flat.loads(fleet([31], home=-1, **under_way), {0: 2}) == Loads((0, 1), (6, 0))
    # A decode instance that sends nothing, or the copy, goes before.
    assert flat.loads(fleet([30, 31], home=-1, **under_way), {0: 1}).sources == (30,)
    assert flat.loads(fleet([31], home=1, **under_way), {0: 1}).sources == (HOME + 1,)
    # Who helps while it loads sends what it has worked on: back to all that have the weights.
    pair = {"partner": {6: 4, 4: 6}}
    assert flat.loads(fleet([4, 31], home=-1, **under_way, **pair), {0: 1}).sources == (4,)
    assert flat.loads(fleet([31], home=-1, **under_way), {0: 1}, prefer="unpruned").sources == (6,)


def test_memory_has_what_its_loads_leave_of_its_bandwidth(flat: Scaler) -> None:
    # Memory has 8 x 100 Gbps, a GPU 100. Of eight loads on the other machine seven leave it one more.
    decode = [24, 25]  # on machine 1, whose other GPUs load or are free
    for under_way, first in ((0, HOME), (6, HOME), (7, 24), (8, 24)):
        far = [10, 11, 12, 13, 14, 15, 26, 27][:under_way]
        # 26 and 27 would be the twins of 10 and 11: only what loads matters here.
        state = dict.fromkeys(far, LOADING)
        seen = fleet(decode, home=0, state=state, source=dict.fromkeys(far, HOME))
        assert edges(flat, seen, [15]) == ((first, 15),), under_way
    # Loads over PCIe on its own machine take nothing of that.
    near = {"state": dict.fromkeys(range(8), LOADING), "source": dict.fromkeys(range(8), HOME)}
    assert edges(flat, fleet(decode, home=0, **near), [15]) == ((HOME, 15),)
    # Used up, it still sends to its own machine; those that load from it send to others.
    far = range(8, 16)
    full = {"state": dict.fromkeys(far, LOADING), "source": dict.fromkeys(far, HOME)}
    assert set(edges(flat, fleet([], home=0, **full), [24, 1])) == {(8, 24), (HOME, 1)}


def lines_of_a_plan(targets: int) -> int:
    """Lines of Python that plan as many loads with live scaling; the same on every machine."""
    slots = targets + 8
    pools = [{**pool, "max_instances": slots} for pool in (PREFILL, DECODE)]
    scaler = Scaler(scenario(pools, network=FLAT, host_copies="one", max_gpus=slots))
    state = np.full(2 * slots, OFF)
    state[[0, 2 * slots - 1]] = ACTIVE
    seen = FleetSeen(
        state=state,
        requests=np.zeros(2 * slots, np.int64),
        waiting=(state == ACTIVE).astype(np.int64),
        source=np.full(2 * slots, -2),
        partner=np.full(2 * slots, -1),
        mutating=np.zeros(2 * slots, bool),
        home=np.array([-1]),
        there=np.array([False]),
    )
    lines = 0

    def count(frame: Any, event: str, _: Any) -> Any:
        nonlocal lines
        lines += event == "line"
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        found = scaler.loads(seen, {0: targets}, live=True, live_above_s=0.3)
    finally:
        sys.settrace(before)
    assert len(found) == targets
    assert found.partners.count(0) == 1
    return lines


def test_a_plan_with_live_scaling_is_work_in_proportion_to_its_targets() -> None:
    # `python -m experiments.bench what=multicast` says how long plans take.
    few, many = lines_of_a_plan(248), lines_of_a_plan(1000)
    assert many < 1.25 * 1000 / 248 * few


def test_no_more_than_there_are_gpus_and_slots(flat: Scaler) -> None:
    seen = fleet([*range(12), 30, 31])
    assert flat.free_gpus(seen) == 2
    found = flat.loads(seen, {0: 2, 1: 2})
    assert set(found.slots) == {12, 13}  # 14 and 15 are the GPUs of 30 and 31
    assert flat.loads(seen, {0: 2}, gpus=1).slots == (12,)
    assert len(flat.loads(fleet([*range(16)]), {1: 1})) == 0


def test_live_pairs_are_tails_with_the_fullest_queues(flat: Scaler) -> None:
    seen = fleet([0, 1, 2, 31], home=-1, waiting={0: 3, 1: 5, 2: 4}, partner={2: 3, 3: 2})
    seen.state[3] = LOADING
    found = flat.loads(seen, {0: 3}, prefer="decode", live=True)
    assert found == Loads((4, 5, 6), (31, 4, 5), (-1, 0, 1))  # the tail helps the fullest one
    # Nobody else has requests waiting: the instance in a pair gets no other helper.
    assert flat.loads(seen, {0: 3}, live=True, going=[0, 1]).partners == ()
    # Decode instances help nobody.
    assert flat.loads(seen, {1: 2}, live=True).partners == ()


def test_live_only_where_stopping_takes_long(joined: Scaler) -> None:
    # Over NVLink a 7B model takes 0.07 s, to the other machine 1.1 s (100 Gbps).
    seen = fleet([*range(5), 31], home=-1, waiting={0: 1, 1: 1, 2: 1})
    found = joined.loads(seen, {0: 3}, live=True, live_above_s=0.45)
    assert found.slots == (5, 6, 7)
    assert found.partners == ()
    alone = fleet([*range(8)], home=-1, waiting={0: 1, 1: 2})
    found = joined.loads(alone, {0: 2}, live=True, live_above_s=0.45)
    assert found.slots == (8, 9)
    assert found.partners == (0, 1)
    plan = joined.plan(alone, 0, [8])
    assert plan is not None
    assert joined.done_s(plan)[8] == pytest.approx(13.48e9 / 12.5e9, rel=0.01)


def test_who_goes_and_who_becomes_another(flat: Scaler) -> None:
    seen = fleet([0, 1, 2, 31], requests={0: 1, 1: 0, 2: 4}, state={5: LOADING}, source={5: 1})
    assert flat.release(seen, 0, 2) == [0, 2]
    assert flat.release(seen, 0, 9) == [0, 2, 1]  # 1 sends weights, so it goes last
    assert flat.mutations(seen, 0, 9) == [1, 0]  # one stays
    assert flat.mutations(seen, 0, 1) == [1]
    assert flat.mutations(fleet([0, 1, 2]), 0, 1) == []  # KV caches would find no decode instance
    assert flat.present(seen, 0) == 4
    assert flat.revivable(fleet([0], state={1: DRAINING}), 0) == 1
    assert flat.revivable(fleet([0], state={1: DRAINING}, mutating={1: True}), 0) == 0


def test_timed_pools_have_no_sources() -> None:
    timed = [{**PREFILL, "weights": "timed"}, {**DECODE, "weights": "timed", "twin_of": None}]
    refuses("no pool has weights = 'flow'", lambda: Scaler(scenario(timed)))


# ---- on the engine ----


def started(**changes: Any) -> tuple[Scaler, ClusterSimulation]:
    of = scenario(network=FLAT, host_copies="one")
    of = of.model_copy(
        update={"impossible_commands": "error", "control_interval_s": 0.25, "horizon_s": 10.0}
        | changes
    )
    simulation = ClusterSimulation(of)
    simulation.start(0, requests_of(of, np.linspace(0, 4, 40), 1000, 30))
    return Scaler(of), simulation


def test_the_engine_loads_as_planned_and_the_view_shows_it() -> None:
    scaler, sim = started()
    loads = scaler.loads(FleetSeen.of(sim.view(0).weights), {0: 2}, prefer="decode")
    assert sim.apply(0, Command(scale=loads)) == 0
    sim.advance()
    view = sim.view(0)
    plan = scaler.plan(FleetSeen.of(view.weights), 0, list(loads.slots), "decode")
    assert plan is not None
    first, second = loads.slots
    assert loads.sources == (31, first)
    weights = view.weights
    assert 0 < weights.layers[0, second] <= weights.layers[0, first] < 32
    assert weights.source[0, [first, second]].tolist() == [31, first]
    # A layer of 0.42 GB takes 34 ms of 100 Gbps; prefill instance 0 sends KV caches beside.
    assert weights.layers[0, first] == 7
    assert weights.left_s[0, first] == pytest.approx(13.48e9 / 12.5e9 - 0.25, abs=0.01)
    assert weights.out_use[0, 31] == pytest.approx(1.0)
    assert weights.in_use[0, first] == pytest.approx(1.0)
    # Slot 15 is 31's twin on the same link, and off: what goes over it counts once.
    assert scaler.twins[31] == 15
    assert weights.out_use[0, 15] == 0
    # What goes out comes in somewhere, but for caches and weights within a machine: none here.
    assert weights.out_use[0].sum() == pytest.approx(weights.in_use[0].sum())
    assert np.isnan(weights.left_s[0, 0])
    assert view.loading["layers_loaded"].tolist() == weights.layers[0].tolist()
    assert view.homes["host"].tolist() == [0]
    assert [view.host_has(h, LLM) for h in (0, 1)] == [True, True]
    for _ in range(5):
        sim.advance()
    done = sim.view(0)
    assert done.pool("prefill")["active"] == 3
    assert np.isnan(done.weights.left_s).all()


def test_mutation_and_failures_by_command() -> None:
    _, sim = started()
    sim.apply(0, Command(scale=Loads((1, 2), (0, FROM_SSD))))
    for _ in range(6):
        sim.advance()
    assert sim.view(0).pool("prefill")["active"] == 2
    sim.apply(0, Command(mutate=(1,)))
    sim.advance()
    sim.advance()
    view = sim.view(0)
    assert view.pool("decode")["active"] == 2
    assert view.instances["state"][17] == ACTIVE
    sim.apply(0, Command(fail_host=(1,)))
    sim.advance()
    assert sim.view(0).instances["failures"].sum() == 1  # the decode instance of machine 1
    sim.apply(0, Command(fail_host=(0,)))
    view = sim.view(0)
    assert view.homes["host"].tolist() == [1]
    assert not view.homes["there"].any()
    logged = Command(mutate=(1,), scale=Loads((1,), (0,), (2,))).to_dict()
    assert logged == {
        "mutate": (1,),
        "scale": {"slots": (1,), "sources": (0,), "partners": (2,)},
    }


@pytest.mark.parametrize(
    "command, message",
    [
        (Command(mutate=(3,)), "mutate: instance = 3: is OFF"),
        (Command(scale=Loads((0,), (31,))), r"scale: slots\[0\] = 0: is ACTIVE"),
        (Command(scale=Loads((1,), (5,))), r"scale: sources\[0\] = 5: must be of LLM 0"),
        (Command(scale=Loads((1, 2), (0,))), "scale: sources: 1 of them for 2 slots"),
        (Command(fail_host=(2,)), "fail_host: .*must be an integer in 0..1"),
    ],
)
def test_impossible_orders(command: Command, message: str) -> None:
    _, sim = started()
    refuses(message, sim.apply, 0, command, error=CommandError)
    _, sim = started(impossible_commands="clip")
    assert sim.apply(0, command) == 1
