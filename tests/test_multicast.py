"""BlitzScale's planner on plans that can be followed by hand, and what holds for all plans."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
import simpy
from hypothesis import given, settings
from hypothesis import strategies as st

from llmscale_env.cluster.loading import CLUSTER_A, CLUSTER_B, NetworkConfig, chain_s
from llmscale_env.cluster.multicast import (
    Plan,
    Source,
    Target,
    all_forests,
    fan_out,
    live_pairs,
    scale_plan,
    sources_of,
    targets_of,
    tree,
)
from llmscale_env.cluster.multicast_time import (
    at_most_s,
    done_s,
    fair_rates,
    layer_bytes,
    layer_times_ps,
)
from llmscale_env.cluster.topology import FROM_SSD, PoolLayout, Topology, switch, topology
from llmscale_env.sim.reference.serving.network import Network
from llmscale_env.sim.reference.serving.network import fair_rates as engines_rates
from llmscale_env.sim.spec import NetworkSpec
from tests.refusals import refuses

WEIGHTS = 12_000_000_000
LAYERS = 12


def apart(*speeds: int) -> Topology:
    """Slots of their own hosts, each with the same speed in and out (in gigabytes per second)."""
    return switch([1e9 * speed for speed in speeds])


def plan_of(found: Topology, sources, slots, sending=(), **options) -> Plan:
    options.setdefault("nvlink", found.nvlink)
    return scale_plan(
        sources_of(found, sources, sending=sending), targets_of(found, slots), **options
    )


# ---- Algorithm 1 ----


def test_one_source_makes_one_chain():
    found = apart(10, 10, 10, 10)
    assert plan_of(found, [0], [1, 2, 3]).edges == ((0, 1), (1, 2), (2, 3))


def test_two_sources_take_turns():
    """Priority is by insertion for the same bandwidth, which keeps chains short (line 11)."""
    found = apart(*[10] * 7)
    plan = plan_of(found, [0, 1], [2, 3, 4, 5, 6])
    assert plan.edges == ((0, 2), (1, 3), (2, 4), (3, 5), (4, 6))
    assert plan.chains() == ((0, 2, 4, 6), (1, 3, 5))
    assert plan.depth == {2: 1, 3: 1, 4: 2, 5: 2, 6: 3}


def test_faster_targets_come_first():
    """Figure 10 (b): S to T2 to T1 if T2 has the faster link."""
    found = apart(20, 10, 20)
    assert plan_of(found, [0], [1, 2]).edges == ((0, 2), (2, 1))


def test_what_is_left_of_a_source_is_used():
    """A source of 100 sends 40 to T1 and has 60 left, more than T1 has: T2 loads from it, too. Then 20 are
    left against 40 of T1 and T2, of which T1 has waited longer."""
    source = Source(0, 0, 100.0)
    targets = [Target(slot, slot, 40.0) for slot in (1, 2, 3)]
    assert scale_plan([source], targets, nvlink=True).edges == ((0, 1), (0, 2), (1, 3))


def test_a_target_hands_on_what_it_gets():
    """T1 could take 50 but gets 30; the second source, of 40, is then better for T2."""
    sources = [Source(0, 0, 30.0), Source(1, 1, 40.0)]
    targets = [Target(2, 2, 50.0), Target(3, 3, 35.0), Target(4, 4, 33.0)]
    # T1 from source 1 (gets 40), T2 from T1 (gets 35, T1 has 5 left), T3 from T2.
    assert scale_plan(sources, targets, nvlink=True).edges == ((1, 2), (2, 3), (3, 4))


def test_sources_that_send_are_pruned():
    found = apart(10, 10, 10, 10)
    assert plan_of(found, [0, 1], [2, 3], sending=[0]).edges == ((1, 2), (2, 3))
    # Nobody else has the weights.
    assert plan_of(found, [0, 1], [2, 3], sending=[0, 1]).edges == ((0, 2), (1, 3))


def test_a_group_loads_once_over_the_network():
    found = topology(CLUSTER_A, 4, [PoolLayout(1, 12)])
    plan = plan_of(found, [0], [4, 5, 6, 9, 10])
    assert plan.edges == ((0, 4), (4, 5), (5, 6), (4, 9), (9, 10))
    without = plan_of(found, [0], [4, 5, 6], nvlink=False)
    assert without.edges == ((0, 4), (4, 5), (5, 6))


def test_a_group_beside_a_running_instance_needs_no_network():
    found = topology(CLUSTER_A, 4, [PoolLayout(1, 8)])
    plan = plan_of(found, [0, 4], [1, 2, 5], sending=[0])
    assert plan.edges == ((0, 1), (1, 2), (4, 5))  # NVLink even from the one that sends


def test_weights_in_the_host_s_memory():
    found = topology(CLUSTER_B, 4, [PoolLayout(1, 8)])
    sources = sources_of(found, [], hosts=[1])
    assert sources == [Source(9, 1, 4 * 12.5e9, memory=True)]
    targets = targets_of(found, [1, 2, 5, 6])
    plan = scale_plan(sources, targets, nvlink=False)
    assert plan.edges == ((9, 5), (9, 6), (9, 1), (9, 2))
    printed = scale_plan(sources, targets, nvlink=False, local_first=False)
    # As printed the memory is one source of four times a target's speed; when as much is left of it as
    # targets hand on, those have waited longer.
    assert printed.edges == ((9, 5), (9, 6), (9, 1), (5, 2))


def test_half_the_bandwidth_beside_a_sender():
    network = NetworkConfig.model_validate("figure-5")
    found = topology(network, 8, [PoolLayout(1, 8)])
    speeds = [t.bytes_per_s for t in targets_of(found, [0, 1, 2, 3], sending=[5, 3])]
    assert speeds == [25e9, 25e9, 12.5e9, 12.5e9]


def test_a_plan_must_make_sense():
    refuses("named twice", Plan, ((0, 1), (2, 1)))
    refuses("before that has a sender", Plan, ((1, 2), (0, 1)))
    refuses("none has the weights", scale_plan, [], [], nvlink=True)
    with pytest.raises(ValueError, match="named twice"):
        scale_plan([Source(0, 0, 1.0)], [Target(1, 1, 1.0)] * 2, nvlink=True)
    assert scale_plan([Source(0, 0, 1.0)], [], nvlink=True).edges == ()


def test_other_plans_by_hand():
    targets = targets_of(apart(*[1] * 8), range(1, 8))
    assert fan_out(0, targets).senders == (0,) * 7
    assert tree(0, targets).edges == ((0, 1), (1, 2), (1, 3), (2, 4), (2, 5), (3, 6), (3, 7))
    assert tree(0, targets, 1).senders == tuple(range(7))
    refuses("children = 0", tree, 0, targets, 0)


def test_tails_work_live_first():
    plan = Plan(((0, 2), (1, 3), (2, 4), (4, 5)))
    assert live_pairs(plan, [7]) == {5: 7}
    assert live_pairs(plan, [7, 8, 9]) == {5: 7, 3: 8, 4: 9}
    assert live_pairs(plan, [6, 7, 8, 9, 10]) == {5: 6, 3: 7, 4: 8, 2: 9}
    assert live_pairs(plan, []) == {}


# ---- time ----


def test_layers_by_hand():
    """Two layers of 6 GB: 6 s each over 1 GB/s, 3 s over 2 GB/s."""
    found = apart(2, 2, 1)
    came = layer_times_ps(found, Plan(((0, 1), (1, 2))), WEIGHTS, 2)
    assert (came / 10**12).tolist() == [[3, 6], [9, 15]]
    came = layer_times_ps(found, Plan(((0, 1), (1, 2))), WEIGHTS, 2, setup_s=0.5)
    assert (came / 10**12).tolist() == [[3.5, 6.5], [9.5, 15.5]]
    # Both from one source: 1 GB/s each; the second target is bound to that anyway.
    came = layer_times_ps(found, Plan(((0, 1), (0, 2))), WEIGHTS, 2)
    assert (came / 10**12).tolist() == [[6, 12], [6, 12]]


def test_serving_takes_its_share():
    found = apart(2, 2, 2)
    chain = Plan(((0, 1), (1, 2)))
    alone = done_s(layer_times_ps(found, chain, WEIGHTS, LAYERS))
    beside = [(0,)]  # a KV cache leaves the source
    shared = done_s(layer_times_ps(found, chain, WEIGHTS, LAYERS, beside=beside))
    assert shared[0] == pytest.approx(2 * alone[0])
    # One that reaches the source is in nobody's way: links have two directions.
    incoming = done_s(layer_times_ps(found, chain, WEIGHTS, LAYERS, beside=[(3,)]))
    assert incoming.tolist() == alone.tolist()


def test_an_empty_path_takes_no_time():
    found = apart(1, 1, 1)
    assert found.path(FROM_SSD, 0) == ()
    plan = Plan(((FROM_SSD, 0), (0, 1)))
    came = layer_times_ps(found, plan, WEIGHTS, 2)
    assert (came / 10**12).tolist() == [[0, 0], [6, 12]]


@given(st.lists(st.integers(1, 40), min_size=2, max_size=8), st.integers(1, 20))
@settings(max_examples=60, deadline=None)
def test_a_chain_takes_what_the_closed_form_says(speeds, layers):
    found = apart(*speeds)
    came = layer_times_ps(
        found, tree(0, targets_of(found, range(1, len(speeds))), 1), WEIGHTS, layers
    )
    links = [1e9 * min(a, b) for a, b in pairwise(speeds)]
    for k in range(len(links)):
        assert done_s(came)[k] == pytest.approx(chain_s(WEIGHTS, links[: k + 1], layers))
    plan = tree(0, targets_of(found, range(1, len(speeds))), 1)
    assert at_most_s(found, plan, WEIGHTS, layers) == pytest.approx(done_s(came), rel=1e-6)


def test_the_bound_shares_links_equally_and_for_ever():
    # Three load 12 GB at 4 GB/s each from one at 12 GB/s, then 2 GB/s sets the pace of a fourth.
    found = apart(12, 12, 12, 12, 2)
    plan = Plan(((0, 1), (0, 2), (0, 3), (3, 4)))
    assert at_most_s(found, plan, WEIGHTS, LAYERS) == pytest.approx([3, 3, 3, 0.25 + 12 * 0.5])
    # The slow one leaves the other more than half: 11 GB/s in truth.
    found = apart(12, 1, 12)
    plan = Plan(((0, 1), (0, 2)))
    assert at_most_s(found, plan, WEIGHTS, LAYERS) == pytest.approx([12, 2])
    exact = done_s(layer_times_ps(found, plan, WEIGHTS, LAYERS))
    assert exact == pytest.approx([12, 12 / 11])
    assert at_most_s(found, Plan(((FROM_SSD, 1),)), WEIGHTS, LAYERS).tolist() == [0]


def test_layers_add_up():
    assert layer_bytes(10, 3) == [3, 3, 4]
    refuses("layers = 0", layer_bytes, 10, 0)
    refuses("at least a byte", layer_bytes, 2, 3)
    refuses("setup_s = -1", lambda: layer_times_ps(apart(1, 1), Plan(((0, 1),)), 10, 1, setup_s=-1))


paths = st.lists(st.lists(st.integers(0, 6), unique=True, max_size=4), max_size=12)


@given(st.lists(st.integers(1, 1000), min_size=7, max_size=7), paths)
@settings(max_examples=300, deadline=None)
def test_rates_are_those_of_the_engines(capacity, flows):
    rates = fair_rates(capacity, flows)
    assert rates == engines_rates(capacity, flows)
    for link, most in enumerate(capacity):
        used = [rate for rate, path in zip(rates, flows, strict=True) if link in path]
        assert sum(used) <= most or set(used) >= {1}  # at least 1 each, whatever the link has


class Loading:
    """A plan carried out by the reference engine's network, layer by layer."""

    def __init__(self, found: Topology, plan: Plan, volumes: list[int]) -> None:
        links = found.links
        rows = (links.out_links, links.in_links, links.local_out_links, links.local_in_links)
        self.clock = simpy.Environment()
        spec = NetworkSpec(np.array(links.capacity), *rows)
        self.network = Network(self.clock, spec, links.hosts, Counter())
        self.topology, self.plan, self.volumes = found, plan, volumes
        self.came: dict[int, list[int]] = {slot: [] for slot in plan.slots}
        self.under_way: set[int] = set()
        for slot in plan.slots:
            self.go(slot)
        self.clock.run()

    def go(self, slot: int) -> None:
        sender = dict(zip(self.plan.slots, self.plan.senders, strict=True))[slot]
        layer = len(self.came[slot])
        ready = sender not in self.came or len(self.came[sender]) > layer
        if layer == len(self.volumes) or slot in self.under_way or not ready:
            return
        self.under_way.add(slot)
        path = self.topology.path(sender, slot)
        self.network.start(slot, path, self.volumes[layer], lambda: self.end(slot))

    def end(self, slot: int) -> None:
        self.under_way.discard(slot)
        self.came[slot].append(int(self.clock.now))
        self.go(slot)
        for sender, target in self.plan.edges:
            if sender == slot:
                self.go(target)


@given(
    st.sampled_from(["blitzscale-a", "blitzscale-b", "figure-5"]),
    st.integers(1, 5),
    st.lists(st.integers(0, 100), min_size=1, max_size=8),
    st.integers(1, 5),
)
@settings(max_examples=60, deadline=None)
def test_layers_come_as_in_the_reference_engine(name, gpus_per_host, choices, layers):
    """To the picosecond, for any tree: links of hosts, neighbours and instances are all shared."""
    network = NetworkConfig.model_validate({"machine": name, "host_network_bytes_per_s": 30e9})
    n = len(choices)
    found = topology(network, gpus_per_host, [PoolLayout(1, n + 1)])
    plan = Plan(tuple((choice % (k + 1), k + 1) for k, choice in enumerate(choices)))
    engine = Loading(found, plan, layer_bytes(WEIGHTS + 7, layers))
    assert layer_times_ps(found, plan, WEIGHTS + 7, layers).tolist() == [
        engine.came[slot] for slot in plan.slots
    ]


# ---- properties ----


@st.composite
def scalings(draw):
    """A cluster with instances that run, that send, and that are to load, and memories with weights."""
    name = draw(st.sampled_from(["blitzscale-a", "blitzscale-b", "figure-5"]))
    found = topology(
        NetworkConfig.model_validate(name), draw(st.sampled_from([2, 4, 8])), [PoolLayout(1, 16)]
    )
    kinds = draw(st.lists(st.sampled_from("rst-"), min_size=16, max_size=16))
    of = {kind: [k for k, each in enumerate(kinds) if each == kind] for kind in "rst-"}
    hosts = draw(st.sets(st.integers(0, max(found.links.hosts)), max_size=2))
    if not (of["r"] or of["s"] or hosts):
        hosts = {0}
    sources = sources_of(found, sorted(of["r"] + of["s"]), sorted(hosts), sending=of["s"])
    return found, sources, targets_of(found, of["t"], sending=of["s"])


@given(scalings())
@settings(max_examples=200, deadline=None)
def test_every_target_is_reached_and_no_pruned_source_uses_the_network(case):
    found, sources, targets = case
    plan = scale_plan(sources, targets, nvlink=found.nvlink)
    assert sorted(plan.slots) == sorted(target.slot for target in targets)
    assert {target for chain in plan.chains() for target in chain[1:]} == set(plan.slots)
    pruned = {source.code for source in sources if source.sends}
    if len(pruned) < len(sources):
        for sender, slot in plan.edges:
            assert sender not in pruned or found.host_of(sender) == found.host_of(slot)
    # Over the network a host's group loads once.
    if found.nvlink:
        reached = [
            found.host_of(slot)
            for sender, slot in plan.edges
            if found.host_of(sender) != found.host_of(slot)
        ]
        assert len(set(reached)) == len(reached)


@given(scalings(), st.integers(1, 20))
@settings(max_examples=100, deadline=None)
def test_no_target_takes_longer_than_the_bound(case, layers):
    found, sources, targets = case
    naive = fan_out(sources[0].code, targets)
    for plan in (scale_plan(sources, targets, nvlink=found.nvlink), naive):
        exact = done_s(layer_times_ps(found, plan, WEIGHTS, layers))
        assert (exact <= at_most_s(found, plan, WEIGHTS, layers) * (1 + 1e-9)).all()


@given(st.integers(1, 10), st.integers(1, 20), st.integers(1, 30))
@settings(max_examples=40, deadline=None)
def test_equal_links_a_chain_is_never_worse_than_fan_out(n, speed, layers):
    found = apart(*[speed] * (n + 1))
    slots = range(1, n + 1)
    chain = done_s(layer_times_ps(found, plan_of(found, [0], slots), WEIGHTS, layers))
    naive = done_s(layer_times_ps(found, fan_out(0, targets_of(found, slots)), WEIGHTS, layers))
    assert chain.max() <= naive.max() + 1e-9
    assert (np.sort(chain) <= np.sort(naive) + 1e-9).all()


@given(st.lists(st.integers(1, 20), min_size=2, max_size=7))
@settings(max_examples=60, deadline=None)
def test_unequal_links_a_plan_loses_at_most_the_fill_of_its_chain(speeds):
    """With unequal links fan-out can win, by what it takes the first layer to come through."""
    found = apart(*speeds)
    slots = range(1, len(speeds))
    plan = plan_of(found, [0], slots)
    took = done_s(layer_times_ps(found, plan, WEIGHTS, LAYERS)).max()
    naive = done_s(
        layer_times_ps(found, fan_out(0, targets_of(found, slots)), WEIGHTS, LAYERS)
    ).max()
    layer = WEIGHTS / LAYERS / 1e9
    fill = sum(layer / min(speeds[0], speeds[slot]) for slot in slots)
    assert took <= naive + fill + 1e-6


# ---- optimum ----


def seconds_of(found, plan, aim):
    """Until the last target has loaded, or the mean over all of them."""
    took = done_s(layer_times_ps(found, plan, WEIGHTS, LAYERS))
    return float(took.max() if aim == "last" else took.mean())


def best_plan(found, sources, slots, aim):
    return min(all_forests(sources, slots), key=lambda plan: seconds_of(found, plan, aim))


def test_all_plans_are_counted():
    assert len(list(all_forests([7], [1, 2]))) == 3
    assert len(list(all_forests([7, 8], [1, 2, 3]))) == 2 * 5**2


def test_figure_10_b_is_the_best_order():
    found = apart(20, 10, 20)
    best = best_plan(found, [0], [1, 2], "mean")
    assert best.edges == plan_of(found, [0], [1, 2]).edges
    seconds = seconds_of(found, best, "mean")
    assert seconds == pytest.approx((0.6 + 1.2 + 0.05) / 2)
    assert seconds_of(found, Plan(((0, 1), (1, 2))), "mean") > 1.3 * seconds


@pytest.mark.parametrize("aim", ["last", "mean"])
def test_the_gap_to_the_best_plan_of_all(aim):
    """Greedy against all forests, three targets of random links."""
    rng = np.random.default_rng(0)
    gaps = []
    for _ in range(12):
        found = apart(*(int(x) for x in rng.integers(1, 21, 5)))
        plans = plan_of(found, [0, 1], [2, 3, 4]), best_plan(found, [0, 1], [2, 3, 4], aim)
        greedy, best = (seconds_of(found, plan, aim) for plan in plans)
        gaps.append(greedy / best)
    assert min(gaps) >= 1 - 1e-9
    assert np.mean(gaps) < 1.1
