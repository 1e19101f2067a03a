"""BlitzScale and its baselines on a cluster: who scales when, and from where weights come."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from baselines import make_policy
from baselines.blitzscale.distserve import DistServePolicy
from baselines.blitzscale.monitor import Repairs, capacity_of, pair_of, spread
from baselines.blitzscale.policy import BlitzScalePolicy
from baselines.parameters import PolicyError
from baselines.registry import policies_for
from llmscale_env.cluster.iteration_time import iteration_time_model
from llmscale_env.cluster.kv import kv_capacity_tokens
from llmscale_env.control.command import Command
from llmscale_env.control.result import EpisodeResult
from llmscale_env.control.run import run_episode
from llmscale_env.control.view import ClusterView, RequestsUnderWay
from llmscale_env.scenarios import load_scenario
from llmscale_env.sim.spec import FROM_SSD, INSTANCE_DTYPE, InstanceState, RequestState

ACTIVE = InstanceState.ACTIVE
SCENARIO = "blitzscale-azure-code-7b"
MEMORY = 64
"""Code of machine 0's memory: 32 slots twice."""


def workload(spikes: Any = (5.0,), rate: float = 1.0, factor: float = 30.0, **lengths: int) -> Any:
    """One request per second, and for two seconds thirty times as many."""
    return {
        "streams": [
            {
                "name": "code",
                "llm": "llama-2-7b",
                "slo_class": "interactive",
                "arrivals": {
                    "kind": "spikes",
                    "factor": factor,
                    "duration_s": 2.0,
                    "at_s": list(spikes),
                },
                "lengths": {"kind": "fixed", "input_tokens": 1500, "output_tokens": 20, **lengths},
                "rate_per_s": rate,
            }
        ]
    }


def scenario(horizon_s: float = 20.0, work: Any = None, **changes: Any) -> Any:
    one = {f"fleet.pools.{name}.initial_instances": 1 for name in ("prefill", "decode")}
    given = {"workload": work or workload(), "horizon_s": horizon_s, **one, **changes}
    return load_scenario(SCENARIO, impossible_commands="error", **given)


def run(policy: str, of: Any) -> EpisodeResult:
    return run_episode(make_policy(policy), of, seed=3)


def loads(result: EpisodeResult) -> list[tuple[float, tuple[int, ...], tuple[int, ...]]]:
    """Time, slots and sources of every order to load."""
    return [
        (d["time_s"], d["scale"]["slots"], d["scale"]["sources"])
        for d in result.decisions
        if "scale" in d
    ]


# ---- what an instance can do ----


def test_capacity_is_what_links_memory_and_targets_allow() -> None:
    of = scenario()
    found = capacity_of(of, pair_of(of, "x"))
    model = iteration_time_model("llama-2-7b", "a100-80gb", 1)
    assert found.input_tokens == 1500
    assert found.prefill_tokens_per_s == pytest.approx(2000 / model.prefill_s(2000))
    # 1500 tokens of 512 KiB are 0.79 GB: 15.9 caches per second cross a link of 100 Gbps. Answers are
    # short, so a batch of few keeps up with that.
    link = 12.5e9 / (1500 * 512 * 1024)
    assert link - 5 < found.decode_per_s <= link
    assert found.decode_tokens < 15_000
    # Both phases take the same rate with this share.
    rate = found.prefill_share() * found.prefill_tokens_per_s / 1500
    assert rate == pytest.approx((1 - found.prefill_share()) * found.decode_per_s)
    # Of short prompts with long answers memory holds fewest.
    long = scenario(work=workload(input_tokens=100, output_tokens=1500))
    found = capacity_of(long, pair_of(long, "x"))
    most = kv_capacity_tokens("llama-2-7b", "a100-80gb", 1)
    assert 0.98 * most < found.decode_tokens <= most
    # The target, where it is tight.
    tight = scenario(
        work=workload(input_tokens=100, output_tokens=1500),
        classes=[{"name": "interactive", "ttft_s": 0.45, "itl_s": 0.02}],
    )
    found = capacity_of(tight, pair_of(tight, "x"))
    batch = round(found.decode_tokens / 850)
    assert model.decode_s(batch, batch * 850) <= 0.02 < model.decode_s(batch + 1, (batch + 1) * 850)


# ---- BlitzScale ----


@pytest.mark.parametrize("trigger", ["paper", "code"])
def test_blitzscale_follows_a_burst_and_comes_back(trigger: str) -> None:
    result = run(f"blitzscale:live=false,trigger={trigger}", scenario())
    first, slots, sources = loads(result)[0]
    assert 5.0 < first <= 6.0
    # The nearest GPU is a neighbour of the prefill instance's; NVLink carries the weights.
    assert (slots[0], sources[0]) == (1, 0)
    # Prefill instances send KV caches to other machines, so they send weights to none of them.
    for _, some, senders in loads(result):
        for slot, source in zip(some, senders, strict=True):
            assert source not in range(32) or source // 8 == slot % 32 // 8
    assert result.summary["loads_ssd"] == 0
    assert result.series["prefill/active"].max() >= 3
    # The burst ends at 7 s; what is left over goes after the timeout.
    end = result.series.iloc[-1]
    assert (end["prefill/active"], end["decode/active"]) == (1, 1)
    assert result.summary["clipped"] == 0
    assert result.summary["joint/unfinished"] <= 2


def test_instances_that_load_over_slow_links_help_at_once() -> None:
    of = scenario(**{"network.nvlink": False})
    live, stopped = run("blitzscale:mutate=never", of), run("blitzscale:live=false", of)
    helped = [
        (slot, partner)
        for d in live.decisions
        if "scale" in d
        for slot, partner in zip(d["scale"]["slots"], d["scale"]["partners"], strict=False)
        if partner >= 0
    ]
    assert helped
    # Prefill instances help each other, each at most one at a time.
    assert all(slot < 32 and partner < 32 for slot, partner in helped)
    assert helped[0][1] == 0
    assert live.summary["clipped"] == 0
    assert live.summary["joint/ttft_s_mean"] < stopped.summary["joint/ttft_s_mean"]
    assert live.summary["joint/arrivals"] == stopped.summary["joint/arrivals"]
    # Loads over NVLink end before a target is missed: nobody helps.
    near = run("blitzscale:mutate=never", scenario(horizon_s=6.0))
    assert not any(d["scale"]["partners"] for d in near.decisions if "scale" in d)


def test_what_waits_is_work_also_when_nobody_comes() -> None:
    # The burst ends at 7 s; as long as the queue is long nobody goes, whatever the arrivals.
    of = scenario(work=workload(factor=150.0), **{"fleet.max_gpus": 6})
    series = run("blitzscale:live=false,timeout_s=0", of).series
    long = series["prefill/waiting"] > 40
    after = series["time_s"] > 9.0
    assert (long & after).any()
    assert series.loc[long & after, "prefill/active"].min() >= 3


@pytest.mark.parametrize(
    "policy, changes",
    [
        ("blitzscale", {}),
        ("blitzscale:mutate=never", {}),
        ("serverlessllm", {}),
        ("allcache", {"fleet.host_cache": "always"}),
    ],
)
def test_few_gpus_are_divided_and_decode_does_not_starve(policy: str, changes: Any) -> None:
    # A long burst of long answers on six GPUs: prefill has four of them before anybody has to decode, and
    # what it has prefilled waits for decode memory.
    work = workload(input_tokens=600, output_tokens=300, factor=60.0)
    work["streams"][0]["arrivals"]["duration_s"] = 20.0
    result = run(policy, scenario(40.0, work, **{"fleet.max_gpus": 6}, **changes))
    series = result.series
    assert series["prefill/active"].max() >= 4
    assert series["prefill/active"].min() >= 1
    assert series["decode/active"].max() >= 3
    assert any("assign" in d for d in result.decisions)
    assert result.summary["clipped"] == 0
    # Two decode instances, as before GPUs were divided, end some 420 of 1,210 by then.
    assert result.requests["outcome"].isin(["on_time", "late"]).sum() > 550


def under_way(*rows: tuple[int, int, bool]) -> RequestsUnderWay:
    """Requests handed over: arrival, KV tokens, movable; 10 of the tokens have been emitted."""
    n = len(rows)
    arrival, tokens, movable = (np.array(column) for column in zip(*rows, strict=True))
    whole, real = np.zeros(n, np.int64), np.zeros(n)
    return RequestsUnderWay(
        request_id=np.arange(100, 100 + n),
        arrival_s=arrival.astype(float),
        slo_class=whole,
        deadline_s=real,
        input_tokens=tokens - 10,
        predicted_output_tokens=whole,
        emitted_tokens=whole + 10,
        llm=whole,
        instance=whole,
        state=np.full(n, RequestState.HANDOVER, np.int8),
        movable=movable.astype(bool),
        first_token_s=real,
    )


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


def test_without_pruning_weights_come_from_who_sends_kv_caches() -> None:
    of = scenario(**{"network.nvlink": False})
    last = "blitzscale:live=false,host_copy=last"
    assert loads(run(last, of))[0][2][0] == 63
    assert loads(run(f"{last},interference_free=false", of))[0][2][0] == 0
    # The copy in memory comes first with pruning and without.
    always = loads(run("blitzscale:live=false", of))
    assert always[0][2][0] == MEMORY
    assert loads(run("blitzscale:live=false,interference_free=false", of))[0] == always[0]


def test_without_network_it_is_serverlessllm() -> None:
    one = run("blitzscale:live=false,network=false", scenario())
    other = run("serverlessllm", scenario())
    assert loads(one) == loads(other) != []
    assert one.summary["joint/ttft_s_mean"] == other.summary["joint/ttft_s_mean"]


def test_prefill_instances_become_decode_instances() -> None:
    # Long answers: after the burst many decode, few prefill.
    work = workload(input_tokens=600, output_tokens=300, factor=60.0)
    of = scenario(work=work, **{"fleet.pools.prefill.initial_instances": 8})
    result = run("blitzscale:live=false,mutate=any,min_prefill=8,decode_tokens=20000", of)
    orders = [d for d in result.decisions if "mutate" in d]
    assert orders
    for order in orders:
        assert all(slot < 32 for slot in order["mutate"])
        # As many prefill instances start in their place (others may start besides).
        started = [slot for slot in order["scale"]["slots"] if slot < 32]
        assert len(started) >= len(order["mutate"])
    assert result.series["decode/active"].max() >= 3
    assert result.summary["clipped"] == 0
    assert result.summary["joint/unfinished"] <= 20


# ---- decisions one by one, on clusters made by hand ----


def shown(
    active: Any, time_s: float = 0.0, *, arrived: int = 0, waits: int = 0, **more: Any
) -> ClusterView:
    """A view of 64 slots: prefill 0 to 31, decode 32 to 63.

    Args:
        active: slots that serve.
        time_s: present time.
        arrived: prompt tokens of the last second.
        waits: prompt tokens of a request that waits for prefill.
        more: columns of instances by slot.
    """
    rows = np.zeros(64, INSTANCE_DTYPE)
    rows["state"] = InstanceState.OFF
    rows["state"][list(active)] = ACTIVE
    for name, values in more.items():
        for slot, value in values.items():
            rows[name][slot] = value
    way = replace(
        under_way((0, 10, True)),
        state=np.array([RequestState.GATEWAY if waits else RequestState.RUNNING], np.int8),
        arrival_s=np.array([time_s]),
        input_tokens=np.array([waits]),
        emitted_tokens=np.array([0]),
    )
    weights = SimpleNamespace(
        instances=rows[None],
        source=np.full((1, 64), -2),
        partner=np.full((1, 64), -1),
        mutating=np.zeros((1, 64), bool),
        home=np.array([[0]]),
        there=np.array([[True]]),
    )
    window = SimpleNamespace(length_s=1.0, input_tokens=np.array([arrived]))
    view = SimpleNamespace(
        time_s=time_s,
        window=window,
        under_way=way,
        weights=weights,
        host_has=lambda host, llm: True,
    )
    return view  # type: ignore[return-value]


def decides(policy: str, max_gpus: int = 32) -> Any:
    """A policy at the start of an episode: instances do 1,000 prompt tokens per second, 10,000 KV tokens."""
    found = make_policy(f"{policy},prefill_tokens_per_s=1000,decode_tokens=10000")
    found.reset(scenario(**{"fleet.max_gpus": max_gpus, "network.nvlink": False}), 0)
    return found


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


# ---- baselines ----


def test_serverlessllm_finds_weights_where_an_instance_was() -> None:
    # Machine 0 has an instance (and the copy), machine 3 has the decode one.
    of = scenario(45.0, workload([5.0, 15.0, 40.0], factor=80.0))
    kept = run("serverlessllm", of)
    cached = {MEMORY, MEMORY + 3}
    assert {source for _, slots, some in loads(kept) for source in some} <= {
        *cached,
        FROM_SSD,
        MEMORY + 1,
        MEMORY + 2,
    }
    assert loads(kept)[0][2][0] in cached  # slots on machines that have them come first
    for _, slots, sources in loads(kept):
        for slot, source in zip(slots, sources, strict=True):
            assert source in (FROM_SSD, MEMORY + slot % 32 // 8)
    # Kept for no longer than a second, weights are only where an instance is.
    short = run("serverlessllm:keep_alive_s=1", of)
    assert short.summary["loads_host"] <= kept.summary["loads_host"]


def test_the_copy_is_not_serverlessllms() -> None:
    # All GPUs of machines 0 and 3 taken: the next ones load from SSD, on machine 1 though the copy is on 0.
    of = scenario(
        work=workload(rate=100.0, factor=1.0),
        **{"fleet.pools.prefill.initial_instances": 8, "fleet.pools.decode.initial_instances": 8},
    )
    first = loads(run("serverlessllm", of))[0]
    assert set(first[2]) == {FROM_SSD}
    always = of.model_copy(update={"fleet": of.fleet.model_copy(update={"host_cache": "always"})})
    assert loads(run("serverlessllm", always))[0] == first
    first = loads(run("allcache", always))[0]
    assert all(s == MEMORY + slot % 32 // 8 for slot, s in zip(first[1], first[2], strict=True))


def test_distserve_is_a_fixed_split() -> None:
    of = scenario()
    share = capacity_of(of, pair_of(of, "x")).prefill_share()
    full, half = DistServePolicy(), make_policy("distserve-half")
    full.reset(of, 0)
    half.reset(of, 0)
    assert full.numbers == {0: round(32 * share), 1: 32 - round(32 * share)}
    assert sum(half.numbers.values()) == 16  # type: ignore[attr-defined]
    result = run("distserve:prefill=3,decode=2", of)
    end = result.series.iloc[-1]
    assert (end["prefill/active"], end["decode/active"]) == (3, 2)
    assert len(loads(result)) == 1
    large = load_scenario("blitzscale-burstgpt-70b")
    full.reset(large, 0)
    assert sum(full.numbers.values()) == 8  # of 4 GPUs each


# ---- slips ----


def timed() -> Any:
    return load_scenario("aladdin-split")


@pytest.mark.parametrize(
    "policy, of, message",
    [
        ("blitzscale", timed, "blitzscale: needs one pool of phase 'prefill'.*weights.*timed"),
        ("distserve", lambda: load_scenario("mixed-slo"), "distserve: needs one pool"),
        ("serverlessllm", lambda: load_scenario("qlm-multi"), "serves one LLM"),
        ("serverlessllm:keep_alive_s=301", scenario, "keep_alive_s = 301: must be at most 300"),
        ("allcache", scenario, "allcache: fleet.host_cache = 'keep-alive'.*must be 'always'"),
        ("blitzscale:min_prefill=31,min_decode=2", scenario, "must take at most 32 GPUs"),
        ("distserve:prefill=32", scenario, "32 prefill and 0 decode instances"),
        (
            "blitzscale:mutate=any",
            lambda: scenario(
                **{"fleet.pools.decode.twin_of": None, "fleet.pools.decode.max_instances": 16}
            ),
            "mutate = 'any': needs twin_of",
        ),
    ],
)
def test_what_cannot_be_served_is_refused(policy: str, of: Any, message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        make_policy(policy).reset(of(), 0)


def test_names() -> None:
    assert isinstance(make_policy("blitzscale"), BlitzScalePolicy)
    with pytest.raises(PolicyError, match="trigger"):
        make_policy("blitzscale:trigger=none")
    assert policies_for(scenario()) == (
        "static",
        "blitzscale",
        "serverlessllm",
        "distserve",
        "distserve-half",
    )
    assert "allcache" in policies_for(scenario(**{"fleet.host_cache": "always"}))
    assert "blitzscale" not in policies_for(timed())
    assert "blitzscale" not in policies_for(load_scenario("mixed-slo"))
