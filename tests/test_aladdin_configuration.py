"""Aladdin's worker configuration (section 4.1, Eq. 5 and 6), and Table 3."""

from __future__ import annotations

import math

import numpy as np
import pytest

from baselines.aladdin.configuration import (
    DegreeTime,
    RequestTokens,
    best_degree,
    degree_table,
    fit_degrees,
)
from llmscale_env.cluster.iteration_model import IterationTimeModel
from llmscale_env.cluster.iteration_time import all_reduce_s_per_token
from llmscale_env.cluster.kv import kv_capacity_tokens
from llmscale_env.cluster.roofline import shipped_efficiency
from llmscale_env.workload.tables import load_lengths

PCIE = 32e9


def model(tp: int, base_s: tuple[float, float], per_token_s: float, **names: str):
    """Decode time base[0] + base[1] (b - 1) + per_token_s context."""
    return IterationTimeModel(
        llm=names.get("llm", "llama-2-13b"), gpu=names.get("gpu", "a100-80gb"), tp=tp, kind="user",
        source="test", decode_batch=(1, 5000),
        decode_base_s=(base_s[0], base_s[0] + 4999 * base_s[1]),
        decode_per_token_s=(per_token_s, per_token_s), prefill_knot_tokens=(0,),
        prefill_knot_s=(0.01,), prefill_slope_s=1e-4, prefill_pair_s=0.0, mixed_knot_tokens=(0,),
        mixed_knot_s=(0.01,), mixed_slope_s=1e-4, mixed_batch=(0,), mixed_base_s=(0.0,),
        mixed_per_token_s=(0.0,), mixed_pair_s=0.0, mixed_chunk_s=0.0,
    )  # fmt: skip


def test_an_average_request():
    # Outputs of 10 and 30: the long one decodes three times as long.
    found = RequestTokens.of([100, 200], [10, 30])
    assert found.final == (110 + 230) / 2
    assert found.held == pytest.approx(((100 * 10 + 50) + (200 * 30 + 450)) / 40)
    for wrong in (([], []), ([1, 2], [1]), ([1], [0]), ([math.nan], [1])):
        with pytest.raises(ValueError, match=r"input"):
            RequestTokens.of(*wrong)


# ---- Eq. 5 ----


def test_computing_time_falls_with_the_degree():
    times = DegreeTime(divided_s=0.04, const_s=0.005, communication_s=0.008)
    assert times.seconds(1) == pytest.approx(0.045)
    assert times.seconds(4) == pytest.approx(0.01 + 0.005 + 0.006)
    degrees = [1, 2, 4, 8]
    found = fit_degrees(degrees, [times.seconds(n) for n in degrees], communication_s=0.008)
    assert vars(found) == pytest.approx(vars(times))


def test_communication_hides_in_the_other_two():
    times = DegreeTime(divided_s=0.04, const_s=0.005, communication_s=0.008)
    found = fit_degrees([1, 2, 4], [times.seconds(n) for n in (1, 2, 4)])
    assert found.divided_s == pytest.approx(0.04 - 0.008)
    assert found.const_s == pytest.approx(0.005 + 0.008)
    assert found.seconds(8) == pytest.approx(times.seconds(8))


# ---- Eq. 6 ----


def test_throughput_by_hand():
    """Decode takes 10 ms + 1 ms per further request; contexts of 1,000 tokens add 1 ms each."""
    capacity = kv_capacity_tokens("llama-2-13b", "a100-80gb", 1)
    room = capacity // 1000  # requests
    (row,) = degree_table(
        "llama-2-13b", "a100-80gb", 1000.0, 0.0501, degrees=[1],
        model_of=lambda *_: model(1, (0.01, 0.001), 1e-6),
    )  # fmt: skip
    # 9 ms + 2 ms b: 20 requests keep 50.1 ms, and memory has room for more.
    assert (row.slo_batch, row.bottleneck, row.reason) == (20, "slo", "best")
    assert row.kv_batch == room > 20
    assert row.slo_throughput == pytest.approx(20 / 0.0501)
    assert row.kv_iteration_s == pytest.approx(0.009 + 0.002 * room)
    assert row.kv_throughput == pytest.approx(room / row.kv_iteration_s)
    assert row.throughput == row.slo_throughput
    assert row.single_s == pytest.approx(0.011)


def test_memory_limits_and_gpus_divide():
    rows = degree_table(
        "llama-2-13b", "a100-80gb", 30_000.0, 0.5, degrees=[1, 2],
        model_of=lambda llm, gpu, tp: model(tp, (0.02 / tp, 0.001), 0.0),
    )  # fmt: skip
    one, two = rows
    assert (one.kv_batch, two.kv_batch) == (2, 5)
    assert one.throughput == pytest.approx(2 / 0.021)
    assert two.throughput == pytest.approx(5 / (2 * 0.014))
    assert (one.bottleneck, two.bottleneck) == ("kv", "kv")
    assert best_degree(rows) == 2
    assert "tp = 2" in one.reason


def test_reasons():
    rows = degree_table("llama-2-70b", "a100-80gb", 600.0, 0.050)
    assert [row.throughput > 0 for row in rows] == [False, False, True]
    assert rows[0].reason.startswith("does not fit")
    assert rows[1].reason.startswith("misses the decode SLO")
    assert best_degree(rows) == 4
    assert best_degree(degree_table("llama-2-70b", "a100-80gb", 600.0, 0.010)) is None
    tiny = degree_table("llama-2-13b", "v100-32gb", 6000.0, 1.0)
    assert "less than one request" in tiny[0].reason


def test_a_slow_link_costs_large_degrees():
    # 80 all-reduces, each sending 2 * 1/2 * 5120 numbers of 2 bytes.
    share = shipped_efficiency()[0].link
    assert all_reduce_s_per_token("llama-2-13b", "a100-80gb", 2, 1e10) == pytest.approx(
        80 * 10_240 / 1e10 / share
    )
    assert all_reduce_s_per_token("llama-2-13b", "a100-80gb", 1, 1e10) == 0
    fast = degree_table("llama-2-13b", "a100-80gb", 600.0, 0.03)
    slow = degree_table("llama-2-13b", "a100-80gb", 600.0, 0.03, link_bytes_per_s=PCIE)
    assert slow[0].throughput == fast[0].throughput
    assert slow[1].throughput < fast[1].throughput
    assert slow[2].throughput < fast[2].throughput


# ---- Table 3 ----


def sharegpt() -> float:
    lengths = load_lengths("sharegpt-single-turn").sample(20_000, np.random.default_rng(0))
    return RequestTokens.of(*lengths).final


@pytest.mark.parametrize(
    "llm,slo_ms,degree", [("llama-2-70b", 75, 2), ("llama-2-13b", 30, 1), ("llama-2-7b", 15, 1)]
)
def test_table_3_on_a100(llm: str, slo_ms: float, degree: int):
    """The paper's A100s are connected by PCIe (section 6.1)."""
    rows = degree_table(llm, "a100-80gb", sharegpt(), slo_ms / 1e3, link_bytes_per_s=PCIE)
    assert best_degree(rows) == degree


def test_table_3_on_v100_by_roofline():
    """The 70b LLM does not fit on 4 V100s, and one holds too little KV for 13b, as the paper says."""
    rows = degree_table("llama-2-70b", "v100-32gb", sharegpt(), 0.075)
    assert best_degree(rows) is None
    assert all(row.reason.startswith("does not fit") for row in rows)
    one, two, _ = degree_table("llama-2-13b", "v100-32gb", sharegpt(), 0.05)
    assert two.throughput > 2 * one.throughput
    assert one.bottleneck == "kv"


@pytest.mark.parametrize(
    "change", [{"request_tokens": 0.0}, {"itl_slo_s": -1.0}, {"degrees": []}, {"link_bytes_per_s": 0.0}]
)  # fmt: skip
def test_bad_arguments(change: dict):
    arguments = {"request_tokens": 600.0, "itl_slo_s": 0.03} | change
    with pytest.raises(ValueError, match=next(iter(change))):
        degree_table("llama-2-7b", "a100-80gb", **arguments)
