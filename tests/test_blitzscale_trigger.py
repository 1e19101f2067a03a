"""BlitzScale's scaling rules by hand."""

from __future__ import annotations

import pytest

from baselines.blitzscale.trigger import (
    DECODE,
    PREFILL,
    RELEASED_PREFILL_TOKENS_PER_S,
    Bounds,
    CodeTrigger,
    PaperTrigger,
    divided,
    instances_for,
    prefill_tokens_per_s,
)
from llmscale_env.cluster.iteration_time import iteration_time_model


def test_instances_that_meet_a_demand():
    assert [instances_for(load, 100, 0.7) for load in (0, 1, 70, 70.1, 140, 700)] == [
        0,
        1,
        1,
        2,
        2,
        10,
    ]


def test_the_paper_s_rule_jumps_to_the_demand():
    rule = PaperTrigger(100, PREFILL)
    assert rule.target(0, 140, 2) == 2  # 70 each: not above
    assert rule.target(1, 141, 2) == 3
    assert rule.target(2, 700, 3) == 10
    assert rule.target(3, 600, 10) == 10  # 60 each: between the bounds


def test_the_paper_s_rule_waits_two_seconds():
    rule = PaperTrigger(100, PREFILL)
    assert rule.target(0.0, 100, 10) == 10
    assert rule.target(1.0, 300, 10) == 10
    assert rule.target(1.9, 50, 10) == 10
    assert rule.target(2.0, 50, 10) == 5  # the window's largest was 300
    assert rule.target(2.1, 50, 5) == 5  # a new window
    assert rule.target(4.1, 0, 5) == 1  # the largest was 50


def test_a_busy_moment_begins_the_window_anew():
    rule = PaperTrigger(100, PREFILL)
    assert rule.target(0, 10, 2) == 2
    assert rule.target(1, 110, 2) == 2
    assert rule.target(2, 10, 2) == 2
    assert rule.target(3.9, 10, 2) == 2
    assert rule.target(4, 10, 2) == 1


def test_from_and_to_nothing():
    rule = PaperTrigger(100, PREFILL, timeout_s=0)
    assert rule.target(0, 0, 1, minimum=0) == 0
    assert rule.target(1, 0, 0, minimum=0) == 0
    assert rule.target(2, 1, 0, minimum=0) == 1
    assert rule.target(3, 0, 0, minimum=2) == 2
    assert CodeTrigger(100, PREFILL).target(0, 0, 0, minimum=2) == 2


def test_a_fall_never_adds():
    """Half a load on each: more than the loose bound allows for so few, but not more than there are."""
    rule = PaperTrigger(100, Bounds(0.7, 0.69), timeout_s=0)
    assert rule.target(0, 136, 2) == 2


def test_the_code_s_rule():
    rule = CodeTrigger(100, PREFILL, ttl_s=0.5)
    assert rule.range(700) == (10, 14)
    assert rule.target(0, 700, 4) == 12  # (10 + 14 + 1) // 2
    assert rule.target(0, 700, 10) == 10
    assert rule.target(0, 700, 14) == 14
    assert rule.target(1, 700, 16) == 16
    assert rule.target(1.5, 700, 16) == 15
    assert rule.target(1.6, 700, 15) == 15
    assert rule.target(2.0, 700, 15) == 14
    assert rule.target(2.1, 700, 14) == 14
    blocks = CodeTrigger(1000, DECODE)
    assert blocks.range(5700) == (6, 8)
    assert blocks.target(0, 5700, 5) == 7
    assert CodeTrigger(1000, DECODE).range(0) == (1, 1)


def test_one_fall_at_a_time_and_only_while_there_are_too_many():
    rule = CodeTrigger(100, PREFILL, ttl_s=1)
    assert rule.target(0, 10, 3) == 3
    assert rule.target(0.5, 120, 3) == 3  # at most 3: nobody is too many
    assert rule.target(1.2, 10, 3) == 3
    assert rule.target(2.2, 10, 3) == 2


@pytest.mark.parametrize(
    "wanted, gpus, total, least, expected",
    [
        ((3, 2), (1, 1), 6, (1, 1), (3, 2)),  # enough for all
        ((8, 4), (1, 1), 6, (1, 1), (4, 2)),  # 6 and 4 of 6 count: 3.6 and 2.4
        ((4, 3), (1, 1), 6, (1, 1), (3, 3)),  # 3.43 and 2.57: the larger remainder
        ((100, 4), (1, 1), 16, (1, 1), (13, 3)),  # 16 and 4 count: 12.8 and 3.2
        ((100, 4), (1, 1), 16, (1, 4), (12, 4)),  # what stays, stays
        ((1, 100), (1, 1), 4, (2, 1), (2, 2)),
        ((4, 4), (4, 2), 16, (1, 1), (3, 2)),  # 16 and 8 GPUs: 2.67 and 2.67, 4 GPUs left
        ((2, 2), (4, 1), 7, (1, 1), (1, 2)),  # 7 and 2: 1.36 and 1.56
        ((8, 2), (1, 4), 11, (1, 1), (7, 1)),  # 5.5 and 1.375: two GPUs left, for two small ones
        ((9, 0), (1, 1), 4, (1, 0), (4, 0)),
    ],
)
def test_few_gpus_are_divided_by_want(wanted, gpus, total, least, expected):
    assert divided(wanted, gpus, total, least) == expected


def test_what_stays_must_have_gpus():
    with pytest.raises(ValueError, match=r"least = \(3, 1\): must take at most 4 GPUs"):
        divided((9, 9), (1, 2), 4, (3, 1))


def test_profiles_are_near_the_released_ones():
    """Their GPUs are A800 and A100; the calibrated A100 does not prefill at another order of speed."""
    for llm in ("llama-2-7b", "llama-3.1-8b"):
        ours = prefill_tokens_per_s(iteration_time_model(llm, "a100-80gb", 1))
        assert ours == pytest.approx(RELEASED_PREFILL_TOKENS_PER_S[llm], rel=0.35)
    with pytest.raises(ValueError, match="batch_tokens"):
        prefill_tokens_per_s(iteration_time_model("llama-2-7b", "a100-80gb", 1), 0)


@pytest.mark.parametrize("kind, wait", [(PaperTrigger, "timeout_s"), (CodeTrigger, "ttl_s")])
def test_wrong_values(kind, wait):
    with pytest.raises(ValueError, match="capacity = 0"):
        kind(0, PREFILL)
    with pytest.raises(ValueError, match="minimum = -1"):
        kind(1, PREFILL).target(0, 1, 1, minimum=-1)
    with pytest.raises(ValueError, match=wait):
        kind(1, PREFILL, **{wait: -1})
    with pytest.raises(ValueError, match="tight"):
        Bounds(0.5, 0.7)
