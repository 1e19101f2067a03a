"""BlitzScale decides: one look at a time, on views made by hand, and when machines fail."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from baselines import make_policy
from baselines.blitzscale.monitor import Repairs, spread
from llmscale_env.control.command import Command
from llmscale_env.control.run import run_episode
from llmscale_env.control.view import ClusterView
from llmscale_env.sim.observed import INSTANCE_DTYPE
from llmscale_env.sim.spec import InstanceState
from tests.blitzscale_bursts import ACTIVE, decides, scenario, shown, under_way

# ---- one look at a time ----


def test_what_waits_goes_to_decode_instances_with_room() -> None:
    rows = np.zeros(5, INSTANCE_DTYPE)  # 0 prefills
    rows["state"] = [ACTIVE, ACTIVE, ACTIVE, ACTIVE, InstanceState.DRAINING]
    rows["kv_tokens"] = [0, 990, 500, 400, 0]
    rows["waiting"] = [0, 3, 0, 0, 0]
    decode = np.arange(1, 5)
    # By age: 300 to 3 (600 of room), 250 to 2 (500), then 280 to 3 (300), and 260 finds 250 at most.
    found = spread(
        rows,
        decode,
        under_way((4, 260, True), (1, 300, True), (3, 280, True), (0, 99, False), (2, 250, True)),
        1000,
    )
    assert found is not None
    assert [found[0].tolist(), found[1].tolist()] == [[101, 104, 102], [3, 2, 3]]
    assert spread(rows, decode, under_way((0, 601, True)), 1000) is None
    assert spread(rows, decode[:1], under_way((0, 10, True)), 1000) is None
    assert spread(rows, decode, under_way((0, 10, False)), 1000) is None


def test_the_codes_rule_goes_by_what_waits() -> None:
    policy = decides("blitzscale:live=false,trigger=code")
    # 50,000 tokens came in a second and are being prefilled: nothing waits.
    assert policy.act(shown([0, 63], arrived=50_000)).scale is None
    # Nothing comes, and 50,000 tokens wait.
    command = policy.act(shown([0, 63], 1.0, waits=50_000))
    assert sum(slot < 32 for slot in command.scale.slots) > 10
    # The paper's rule goes by what comes.
    command = decides("blitzscale:live=false").act(shown([0, 63], arrived=50_000))
    assert sum(slot < 32 for slot in command.scale.slots) > 10


def test_only_those_become_decode_instances_whom_a_free_gpu_replaces() -> None:
    # 35,000 KV tokens want four decode instances, 2,700 prompt tokens per second the four that prefill.
    policy = decides("blitzscale:mutate=any", max_gpus=6)
    command = policy.act(shown([0, 1, 2, 3, 63], arrived=2_700, kv_tokens={63: 35_000}))
    # One GPU is free: three instances change, as decode wants, only if there are three.
    assert len(command.mutate) == len(command.scale.slots) == 1
    policy = decides("blitzscale:mutate=any", max_gpus=7)
    command = policy.act(shown([0, 1, 2, 3, 63], arrived=2_700, kv_tokens={63: 35_000}))
    assert len(command.mutate) == 2


def test_gpus_are_divided_only_when_decode_memory_is_full() -> None:
    # Eight prefill instances and two decode ones are wanted, there are GPUs for six.
    policy = decides("blitzscale:mutate=any", max_gpus=6)
    command = policy.act(shown([0, 1, 2, 3, 63], arrived=8_000, kv_tokens={63: 12_000}))
    assert command.mutate == ()
    assert [slot < 32 for slot in command.scale.slots] == [False]  # decode has the free GPU
    # Memory holds 119,000.
    policy = decides("blitzscale:mutate=any", max_gpus=6)
    command = policy.act(shown([0, 1, 2, 3, 63], arrived=8_000, kv_tokens={63: 118_000}))
    assert len(command.mutate) == 2


def test_the_last_active_instance_does_not_drain() -> None:
    # One too many, of which the other one loads still: who serves stays.
    policy = decides("blitzscale:live=false,timeout_s=0")
    first = policy.act(shown([0, 63], state={1: InstanceState.LOADING}))
    assert first.reason.startswith("prefill 2 -> 1")
    assert first.drain == ()
    assert policy.act(shown([0, 1, 63], 1.0)).drain == (1,)
    assert len(policy.act(shown([0, 1, 2, 63], 2.0)).drain) == 2


# ---- machines that fail ----


def test_who_is_in_repair() -> None:
    rows = np.zeros(5, INSTANCE_DTYPE)
    acquiring, loading = InstanceState.ACQUIRING, InstanceState.LOADING
    rows["state"] = [ACTIVE, InstanceState.OFF, ACTIVE, acquiring, ACTIVE]
    rows["failures"] = [1, 1, 0, 0, 0]
    repairs = Repairs()
    assert not repairs.look(rows).any()
    # 0 fails again, 1 has been ordered, 2 fails, 3 fails before it loads, 4 fails and loads at once.
    rows["state"] = [acquiring, acquiring, acquiring, acquiring, loading]
    rows["failures"] = [2, 1, 1, 1, 1]
    for _ in range(2):
        assert repairs.look(rows).tolist() == [True, False, True, True, False]
    rows["state"][[0, 2]] = loading, InstanceState.OFF
    assert repairs.look(rows).tolist() == [False, False, False, True, False]
    rows["state"][2] = acquiring
    assert not repairs.look(rows)[2]


@pytest.mark.parametrize("policy", ["blitzscale:live=false", "serverlessllm:keep_alive_s=300"])
def test_others_start_in_place_of_those_in_repair(policy: str) -> None:
    found = decides(policy)
    assert found.act(shown([0, 1, 63], arrived=1_300)).scale is None
    broken = {"state": dict.fromkeys((0, 1), InstanceState.ACQUIRING)}
    failed = {**broken, "failures": {0: 1, 1: 1}}
    command = found.act(shown([63], 1.0, arrived=1_300, **failed))
    assert len(command.scale.slots) == 2
    assert not {0, 1} & set(command.scale.slots)
    assert all(slot < 32 for slot in command.scale.slots)
    # Others that start have not failed: nobody else is ordered.
    started = {"state": {**broken["state"], 2: InstanceState.ACQUIRING, 3: InstanceState.LOADING}}
    command = found.act(shown([63], 2.0, arrived=1_300, **{**failed, **started}))
    assert command.scale is None


def test_where_nearly_all_is_in_repair_nobody_is_divided() -> None:
    found = decides("blitzscale:mutate=any", max_gpus=3)
    found.act(shown([0, 1, 63], arrived=1_300))
    failed = {"state": dict.fromkeys((0, 1), InstanceState.ACQUIRING), "failures": {0: 1, 1: 1}}
    command = found.act(shown([63], 1.0, arrived=1_300, kv_tokens={63: 118_000}, **failed))
    assert command.mutate == command.drain == ()


class Killing:
    """BlitzScale, and a machine breaks down some looks after the first loads were ordered."""

    name = "killing"

    def __init__(self, host: int, after: int) -> None:
        self.policy = make_policy("blitzscale")
        self.host, self.after = host, after
        self.killed_s = -1.0
        self.homes: list[tuple[int, bool]] = []
        self.started: list[int] = []

    def reset(self, of: Any, seed: int) -> None:
        self.policy.reset(of, seed)
        self.looks = -1

    def act(self, view: ClusterView) -> Command:
        command = self.policy.act(view)
        self.homes.append((int(view.homes["host"][0]), bool(view.homes["there"][0])))
        if self.killed_s >= 0 and command.scale is not None:
            self.started += command.scale.slots
        if self.looks >= 0 or command.scale is not None:
            self.looks += 1
        if self.looks == self.after and self.killed_s < 0:
            self.killed_s = view.time_s
            self.before = view.instances["state"].copy()
            self.helped = view.weights.partner[0].copy()
            return Command(fail_host=(self.host,))
        return command


LINK_S = 13.48e9 / 12.5e9
"""Weights of Llama-2-7B over a link of 100 Gbps."""

FLOWS = 2
"""Flows that share the link of the only instance left."""


@pytest.mark.parametrize("after", [1, 3, 6])
@pytest.mark.parametrize("host", [0, 1, 3])
def test_a_machine_killed_in_mid_scale_loses_no_request(host: int, after: int) -> None:
    of = scenario(30.0, **{"network.nvlink": False})
    policy = Killing(host, after)
    result = run_episode(policy, of, seed=3)
    assert policy.killed_s > 5.0
    loading = np.isin(policy.before, (InstanceState.ACQUIRING, InstanceState.LOADING))
    assert loading.any()
    assert (policy.helped >= 0).any()
    here = np.arange(64) % 32 // 8 == host
    at = round(policy.killed_s / of.control_interval_s)
    if host == 0:  # it has the copy, the prefill instances and those that help them
        assert policy.homes[at : at + 2] == [(0, True), (1, False)]
        assert (policy.helped[here] >= 0).any()
        # The only instance left sends to the copy and to the first that starts; the others are behind that.
        back = policy.homes[at:].index((1, True)) * of.control_interval_s
        assert LINK_S <= back <= FLOWS * LINK_S + of.control_interval_s
    else:
        assert set(policy.homes) == {(0, True)}
    # For a minute nobody loads again on what is broken; others start, by the planner.
    broken = np.flatnonzero(here & (policy.before != InstanceState.OFF) & (policy.before != 4))
    assert not set(broken) & set(policy.started)
    assert policy.started or not (policy.before[here] == ACTIVE).any()
    assert (result.requests["restarts"].sum() > 0) == bool((policy.before[here] == ACTIVE).any())
    assert result.summary["joint/rejected"] == 0
    gone = result.requests[result.requests["arrival_s"] < 25.0]
    assert set(gone["outcome"]) <= {"on_time", "late"}  # everybody is served
