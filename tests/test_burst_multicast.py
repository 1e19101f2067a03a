"""BurstMulticast-v0: what its orders do, what is possible, what it sees of loads and links."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from llmscale_env.control.command import Command, CommandError
from llmscale_env.envs.burst_multicast import BurstMulticastEnv
from llmscale_env.envs.codec import Codec
from llmscale_env.scenarios import load_scenario
from llmscale_env.sim.spec import FROM_SSD, InstanceState
from tests.env_kinds import entries_of, masks_of
from tests.small_world import SMALL_WORLD, SmallEnv

QUIET = {
    "horizon_s": 30,
    "workload.rate_scale": 0.01,
    "fleet.pools.prefill.initial_instances": 2,
}
"""Hardly any requests, and few instances at the start."""

PLANNER, DECODE, ANY, HOST, SSD = range(5)
ALL = 3
COUNTS = [0, 1, 2, 3, 4, 5, 6, 8, 10, 12, 16]
MEMORY = 32


def act(
    prefill: int,
    decode: int,
    source: int = DECODE,
    chains: int = ALL,
    live: int = 0,
    mutate: int = 0,
) -> np.ndarray:
    return np.array([COUNTS.index(prefill), COUNTS.index(decode), source, chains, live, mutate])


def make(**changes: Any) -> BurstMulticastEnv:
    env = BurstMulticastEnv(overrides={**QUIET, **changes})
    env.reset(seed=0)
    return env


def numbers(env: BurstMulticastEnv) -> tuple[int, int]:
    view = env.view()
    return int(view.pools["active"][0]), int(view.pools["active"][1])


def seen(env: BurstMulticastEnv, action: Any) -> dict[str, float]:
    """Entries of the observation after an action."""
    return entries_of(env.codec, env.step(action)[0])


def test_the_manual_says_how_many_instances_serve_at_the_start() -> None:
    env = BurstMulticastEnv()
    env.reset(seed=0)
    words = {1: "one", 2: "two", 3: "three", 4: "four", 12: "twelve"}
    prefill, decode = (words[n] for n in numbers(env))
    said = f"{prefill.capitalize()} prefill and {decode} decode instances serve"
    assert said in " ".join((BurstMulticastEnv.__doc__ or "").split())


def test_instances_load_over_the_network_or_from_ssd() -> None:
    env = make()
    entries = seen(env, act(4, 2))
    # Two load over links of 100 Gbps: 16 GB take 1.3 s, so three quarters are there after 1 s.
    assert entries["prefill/layers_3"] == pytest.approx(2 / 16)
    assert entries["prefill/next"] == pytest.approx(0.28 / 5, abs=0.01)
    assert entries["prefill/in_max"] == pytest.approx(1.0)
    assert entries["decode/out_max"] == pytest.approx(1.0)
    assert entries["decode/sending"] == 1.0
    assert entries["llama-3.1-8b/copy"] == 1.0
    # Slots 0 and 1 serve, 2 and 3 are next to the copy; decode instances 30 and 31 send.
    assert env.view().weights.source[0, [2, 3]].tolist() == [30, 31]
    env.step(act(4, 2))
    assert numbers(env) == (4, 2)
    slow = make()
    entries = seen(slow, act(4, 2, SSD))
    assert slow.view().weights.source[0, [2, 3]].tolist() == [FROM_SSD] * 2
    assert entries["prefill/layers_0"] == pytest.approx(2 / 16)
    assert entries["prefill/next"] == 1.0
    for _ in range(11):
        slow.step(act(4, 2, SSD))
    assert numbers(slow) == (2, 2)
    slow.step(act(4, 2, SSD))
    assert numbers(slow) == (4, 2)


def test_chains_and_preferences() -> None:
    for action, sources in (
        (act(4, 2, PLANNER), [MEMORY, MEMORY]),  # it has four GPUs' links
        (act(4, 2, PLANNER, 0), [MEMORY, MEMORY]),
        (act(4, 2, DECODE, 0), [30, 2]),
        (act(4, 2, ANY), [0, 1]),
        (act(4, 2, HOST), [MEMORY, MEMORY]),
    ):
        env = make()
        env.step(action)
        assert env.view().weights.source[0, [2, 3]].tolist() == sources


def test_the_planners_own_order_is_an_agents_choice() -> None:
    # Without a copy the planner takes instances that send nothing: decode ones, never prefill ones.
    for action, sources in (
        (act(4, 2, PLANNER), [30, 31]),
        (act(4, 2, PLANNER, 0), [30, 2]),
        (act(4, 2, ANY), [0, 1]),
    ):
        env = make(**{"fleet.host_copies": "none"})
        env.step(action)
        assert env.view().weights.source[0, [2, 3]].tolist() == sources


def test_a_prefill_instance_becomes_a_decode_instance_at_once() -> None:
    env = make()
    _, _, _, _, info = env.step(act(1, 3, mutate=1))
    assert numbers(env) == (1, 3)
    assert (
        info["metrics"]["loads"] == 1
    )  # it counts as one that has started, but nothing was loaded
    assert env.view().pools["source_used"].sum() == 0
    # Of one prefill instance nobody can be spared.
    mask = np.split(info["action_mask"], np.cumsum(env.action_space.nvec)[:-1])
    assert mask[5].tolist() == [True, False]
    # And another starts in its place, if there are to be two.
    env = make()
    env.step(act(2, 3, mutate=1))
    assert numbers(env) == (1, 3)
    env.step(act(2, 3))
    assert numbers(env) == (2, 3)
    assert env.view().pools["source_used"].sum() == 1


def test_lower_numbers_stop_instances_and_who_stops_sends_nothing() -> None:
    env = make()
    # One decode instance goes while a prefill instance starts: the other one sends.
    _, _, _, _, info = env.step(act(3, 1))
    assert info["clipped"] == 0
    assert numbers(env)[1] == 1
    (stays,) = np.flatnonzero(env.view().instances["state"][16:] == InstanceState.ACTIVE) + 16
    assert env.view().weights.source[0, 2] == stays
    env.step(act(3, 1))
    assert numbers(env) == (3, 1)
    env.step(act(1, 1))
    assert numbers(env) == (1, 1)


def test_masks_say_what_is_possible() -> None:
    env = make()

    def masks() -> list[list[bool]]:
        return [mask.tolist() for mask in masks_of(env)]

    prefill, decode, source, chains, live, mutate = masks()
    # Four of 16 GPUs are taken: 14 more prefill instances cannot be; a decode one can be made of prefill.
    assert [c for c, m in zip(COUNTS, prefill, strict=True) if m] == COUNTS[:-1]
    assert [c for c, m in zip(COUNTS, decode, strict=True) if m] == COUNTS[:-1]
    assert (source, chains, live, mutate) == ([True] * 5, [True] * 4, [True] * 2, [True] * 2)
    for _ in range(3):
        env.step(act(2, 0))
    source = masks()[2]
    assert source == [True, False, True, True, True]
    env = make(**{"fleet.host_copies": "none"})
    assert masks()[2] == [True, True, True, False, True]


BUSY = {
    "workload.rate_scale": 3.0,
    "workload.streams.code.rate_per_s": 12.5,
    "workload.streams.code.arrivals": "poisson",
    "network.inter_host_bytes_per_s": 4e9,
}
"""37 requests per second all the time, over slow links."""


def test_live_instances_help_those_with_requests_waiting() -> None:
    # Far more requests than two prefill instances take: after 1 s both have queues.
    env = make(**BUSY)
    env.step(act(2, 2))
    entries = seen(env, act(4, 2, live=1))
    weights = env.view().weights
    helpers = np.flatnonzero(weights.partner[0] >= 0)
    assert set(helpers) & {2, 3}
    assert set(weights.partner[0, helpers]) == set(helpers)
    assert entries["prefill/helping"] == pytest.approx(len(set(helpers) & {2, 3}) / 16)
    env = make(**BUSY)
    env.step(act(2, 2))
    assert seen(env, act(4, 2, live=0))["prefill/helping"] == 0


def test_too_many_are_clipped_or_an_error() -> None:
    env = make()
    assert env.step(act(12, 6))[4]["clipped"] == 2
    env = make(impossible_commands="error")
    with pytest.raises(CommandError, match="2 choices"):
        env.step(act(12, 6))


def test_without_split_phases_and_twins_there_are_fewer_parts() -> None:
    pool = {
        "name": "all",
        "llm": "llama-3.1-8b",
        "v1": None,
        "max_instances": 4,
        "initial_instances": 1,
        "weights": "flow",
    }
    changes = {"fleet.pools": [pool], "fleet.routes": [{"pools": ["all"]}], "horizon_s": 30}
    env = BurstMulticastEnv(overrides=changes)
    assert env.codec.decoder.parts == ["all/instances", "weights/from", "weights/chains"]
    env.reset(seed=0)
    env.step([3, 1, 3])
    env.step([3, 1, 3])
    assert env.view().pools["active"].tolist() == [3]


def test_timed_pools_are_refused() -> None:
    with pytest.raises(ValueError, match="action = 'multicast': pool 'interactive' has weights"):
        Codec(load_scenario(SMALL_WORLD), ["clock"], ["multicast"])


# ---- the loading choice of other environments, where weights flow ----


def flowing(**changes: Any) -> Any:
    """The small world over links, without requests to speak of."""
    flow = {f"fleet.pools.{name}.weights": "flow" for name in ("interactive", "mixed", "batch")}
    given = {"network.startup_s": 0, "horizon_s": 60, "workload.rate_scale": 0.01}
    return load_scenario(SMALL_WORLD, **{**flow, **given, **changes})


def mixed(source: str, interactive: int = 4, batch: int = 0) -> list[int]:
    counts = [0, 1, 2, 3, 4, 5, 6, 8, 10, 12, 16]
    sources = ["ssd", "host", "multicast"]
    return [counts.index(interactive), 4, counts.index(batch), 3, 3, 5, 0, sources.index(source)]


def test_the_loading_choice_of_pools_is_the_planners_where_weights_flow() -> None:
    # Interactive instances 0 to 3 and mixed ones 16 to 19 serve; machines of 8: hosts 0 and 2.
    env = SmallEnv(scenario=flowing(**{"network.nvlink": False, "control_interval_s": 1}))
    env.reset(seed=0)
    env.step(mixed("multicast", batch=3))
    view = env.view()
    sources = view.weights.source[0, 32:35].tolist()
    assert len(set(sources)) == 3  # one sender for each
    assert set(sources) <= {*range(4), *range(16, 20)}
    # The engine by itself takes the lowest one for all, and they share its link.
    other = SmallEnv(scenario=env.scenario)
    other.reset(seed=0)
    other.core.sim.apply(0, Command(targets={"batch": 3}, load_source="multicast"))
    other.core.sim.advance()
    assert other.view().weights.source[0, 32:35].tolist() == [0, 0, 0]
    assert other.view().weights.layers[0, 32] < view.weights.layers[0, 32]


def test_other_sources_and_falls_are_the_engines() -> None:
    env = SmallEnv(scenario=flowing(control_interval_s=1))
    env.reset(seed=0)
    env.step(mixed("ssd", interactive=5))
    assert env.view().weights.source[0, 4] == FROM_SSD
    env.step(mixed("multicast", interactive=2, batch=1))
    view = env.view()
    assert view.pools["active"].tolist()[:2] == [2, 4]
    assert view.instances["state"][int(view.weights.source[0, 32])] == InstanceState.ACTIVE
    env = SmallEnv(scenario=flowing(**{"fleet.max_gpus": 9, "impossible_commands": "clip"}))
    env.reset(seed=0)
    assert env.step(mixed("multicast", batch=3))[4]["clipped"] == 2
