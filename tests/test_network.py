"""Links and flows, docs/engine.md section 11: rates by hand and as laws.

The fast engine's are held to the same by `test_split_engines_agree`.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import simpy

from llmscale_env.sim.reference.serving.network import Network, fair_rates
from llmscale_env.sim.spec import NetworkSpec
from tests.refusals import refuses


def network(capacity: list[int], hosts: list[int]) -> tuple[simpy.Environment, Network]:
    """Slot `i` of host `h` leaves by link `2h` and is reached by `2h + 1`; inside a host nothing limits."""
    spec = NetworkSpec(
        np.array(capacity),
        out_links=tuple((2 * h,) for h in hosts),
        in_links=tuple((2 * h + 1,) for h in hosts),
        local_out_links=tuple(() for _ in hosts),
        local_in_links=tuple(() for _ in hosts),
    )
    clock = simpy.Environment()
    return clock, Network(clock, spec, hosts, Counter())


def test_rates_by_hand() -> None:
    # Link 0 (10) is shared by three: 3 each. What is left of link 1 (20) goes to the fourth: 17.
    assert fair_rates([10, 20], [[0], [0], [0, 1], [1]]) == [3, 3, 3, 17]
    assert fair_rates([10], [[], [0]]) == [0, 10]
    # More flows than bytes per microsecond: one each, all the same.
    assert fair_rates([2], [[0], [0], [0]]) == [1, 1, 1]


@pytest.mark.parametrize("seed", range(20))
def test_rates_are_max_min_fair(seed: int) -> None:
    rng = np.random.default_rng(seed)
    capacity = rng.integers(50, 1000, 6)
    paths = [
        sorted(rng.permutation(6)[: rng.integers(1, 4)].tolist()) for _ in range(rng.integers(1, 9))
    ]
    rates = fair_rates(capacity.tolist(), paths)
    load = [sum(r for r, path in zip(rates, paths, strict=True) if k in path) for k in range(6)]
    assert all(used <= cap for used, cap in zip(load, capacity, strict=True))
    for rate, path in zip(rates, paths, strict=True):
        # Each flow has a bottleneck: full up to rounding, and nobody there is faster.
        assert any(
            capacity[k] - load[k] < len(paths)
            and rate == max(r for r, other in zip(rates, paths, strict=True) if k in other)
            for k in path
        )


def test_a_single_flow_takes_bytes_over_capacity() -> None:
    clock, net = network([4, 4, 4, 4], [0, 1])
    ends: list[int] = []
    net.start(0, net.paths.between(0, 1), 1, lambda: ends.append(int(clock.now)))
    net.start(1, net.paths.between(1, 0), 10, lambda: ends.append(int(clock.now)))
    net.start(2, net.paths.between(0, 0), 10**6, lambda: ends.append(int(clock.now)))
    clock.run(until=10**7)
    assert ends == [0, 250_000, 2_500_000]  # a byte at 4 bytes/us takes 0.25 us; locally no time


def test_flows_share_and_speed_up() -> None:
    clock, net = network([10, 10, 10, 10, 10, 10], [0, 1, 2])
    ends: list[tuple[int, int]] = []
    for number, (source, target, size) in enumerate([(0, 1, 10), (0, 2, 30)]):
        path = net.paths.between(source, target)
        net.start(number, path, size, lambda n=number: ends.append((n, int(clock.now))))
    clock.run(until=10**8)
    # 5 and 5: the first ends after 2 us; the second has 20 left, at 10: another 2 us.
    assert ends == [(0, 2_000_000), (1, 4_000_000)]


@pytest.mark.parametrize("seed", range(10))
def test_bytes_are_conserved(seed: int) -> None:
    """Between any two changes each flow moves rate times time; in all, its volume."""
    rng = np.random.default_rng(seed)
    clock, net = network(rng.integers(1, 9, 8).tolist(), [0, 0, 1, 2, 3])
    moved: Counter[int] = Counter()
    sizes: dict[int, int] = {}
    ended: set[int] = set()

    def run(until_ps: int) -> None:
        while clock.now < until_ps:
            next_ps = int(min(clock.peek(), until_ps))
            for k, flow in net.flows.items():
                moved[k] += flow.rate * (next_ps - int(clock.now))
            if clock.peek() < until_ps:
                clock.step()
            else:
                clock.run(until=until_ps)

    for number in range(12):
        run(int(clock.now) + int(rng.integers(0, 3_000_000)))
        source, target = rng.integers(0, 5, 2).tolist()
        sizes[number] = int(rng.integers(1, 20))
        path = net.paths.between(source, target)
        net.start(number, path, sizes[number], lambda n=number: ended.add(n))
    run(int(clock.now) + 1_000_000)
    for k, flow in net.flows.items():
        left = flow.left - flow.rate * (int(clock.now) - flow.seen_ps)
        assert left == sizes[k] * 10**6 - moved[k]
    for k in ended:
        # The last picosecond may be begun and not filled.
        assert 0 <= moved[k] - sizes[k] * 10**6 < 9 or moved[k] == 0
    assert ended


def test_a_change_of_rates_leaves_one_event_behind_at_most() -> None:
    clock, net = network([1000, 1000], [0])
    n = 100
    for k in range(n):
        net.start(k, (0,), 10**6 * (n - k), lambda: None)
    assert len(clock._queue) <= n
    clock.run(clock.now + 10**8)
    for k in range(n):
        net.stop(k)
    assert len(clock._queue) <= 2 * n


def test_impossible_networks_are_refused() -> None:
    def spec(capacity: list[int], out: tuple[int, ...], into: tuple[int, ...]) -> NetworkSpec:
        return NetworkSpec(np.array(capacity), (out,), (into,), ((),), ((),))

    assert spec([1, 1], (0,), (1,)).out_links == ((0,),)
    refuses("at least 1 byte", spec, [0, 1], (0,), (1,))
    refuses(r"out_links\[0\] = \(0, 0\)", spec, [1, 1], (0, 0), (1,))
    refuses(r"in_links\[0\] = \(2,\)", spec, [1, 1], (0,), (2,))
    refuses("directed", spec, [1, 1], (0,), (0,))
