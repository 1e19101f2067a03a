"""BlitzScale and its baselines on a cluster: who scales when, and from where weights come."""

from __future__ import annotations

from typing import Any

import pytest

from baselines import make_policy
from baselines.blitzscale.distserve import DistServePolicy
from baselines.blitzscale.monitor import capacity_of, pair_of
from baselines.blitzscale.policy import BlitzScalePolicy
from baselines.make import policies_for
from baselines.parameters import PolicyError
from llmscale_env.cluster.iteration_time import iteration_time_model
from llmscale_env.cluster.kv import kv_capacity_tokens
from llmscale_env.scenarios import load_scenario
from llmscale_env.sim.spec import FROM_SSD
from tests.blitzscale_bursts import MEMORY, decides, loads, run, scenario, shown, workload
from tests.small_world import SMALL_WORLD

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


def test_hosts_of_one_gpu_know_only_their_own_weights() -> None:
    # Prefill instances have served on GPUs 0 and 1, a decode one serves on GPU 31. On machines of eight GPUs
    # the ones beside them have the weights as well; on hosts of one only GPU 1 has (0 and 31 are in use); on
    # hosts of two GPU 30 has besides.
    for policy, slots, sources in (
        ("serverlessllm:keep_alive_s=300", (1, 2, 3), (MEMORY, MEMORY, MEMORY)),
        ("serverlessllm:logical_host_gpus=1", (1, 2, 3), (MEMORY, FROM_SSD, FROM_SSD)),
        ("serverlessllm:logical_host_gpus=4", (1, 2, 3), (MEMORY, MEMORY, MEMORY)),
        ("serverlessllm:logical_host_gpus=2", (1, 30, 2), (MEMORY, MEMORY + 3, FROM_SSD)),
    ):
        found = decides(f"{policy},timeout_s=0,min_prefill=1,min_decode=1")
        found.act(shown([0, 1, 63]))
        command = found.act(shown([0, 63], 1.0, arrived=2_800))  # asks for four prefill instances
        assert (command.scale.slots, command.scale.sources) == (slots, sources), policy
    # The twin of a prefill instance sits on its GPU: a decode instance starts where one prefilled.
    found = decides("serverlessllm:logical_host_gpus=1,timeout_s=0,min_prefill=1,min_decode=1")
    found.act(shown([0, 5, 63]))
    command = found.act(shown([0, 63], 1.0, kv_tokens={63: 15_000}))
    assert (command.scale.slots, command.scale.sources) == ((37,), (MEMORY,))


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
        ("distserve", lambda: load_scenario(SMALL_WORLD), "distserve: needs one pool"),
        ("serverlessllm", lambda: load_scenario("qlm-multi"), "serves one LLM"),
        ("serverlessllm:keep_alive_s=301", scenario, "keep_alive_s = 301: must be at most 300"),
        (
            "serverlessllm:logical_host_gpus=3",
            scenario,
            "logical_host_gpus = 3: must divide the 8 GPUs",
        ),
        (
            "serverlessllm:logical_host_gpus=2",
            lambda: load_scenario("blitzscale-burstgpt-70b"),
            "logical_host_gpus = 2: .*whole instances of 4",
        ),
        ("allcache", scenario, "allcache: fleet.host_cache = 'keep-alive'.*must be 'always'"),
        ("blitzscale:min_prefill=31,min_decode=2", scenario, "must take at most 32 GPUs"),
        (
            "blitzscale:min_prefill=9",
            lambda: scenario(
                **{f"fleet.pools.{name}.max_instances": 8 for name in ("prefill", "decode")}
            ),
            "min_prefill = 9: pool 'prefill' has at most 8 instances",
        ),
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
    assert "blitzscale" not in policies_for(load_scenario(SMALL_WORLD))
