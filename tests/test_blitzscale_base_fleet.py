"""BlitzScale's base fleet, the long-term average required: averages by hand, and in decisions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from baselines import make_policy
from baselines.blitzscale.base_fleet import BaseFleet
from baselines.parameters import PolicyError
from llmscale_env.control.reward import draw_requests
from llmscale_env.control.run import run_episode
from llmscale_env.sim.compile import ps
from tests.blitzscale_bursts import decides, scenario, shown, workload


def looks(base: BaseFleet, required: Any) -> list[int]:
    """The base after each look, one a second; the first one is of no time."""
    return [base.look(float(t > 0), n) for t, n in enumerate([0, *required])]


def test_the_base_is_the_average_required_rounded_up() -> None:
    # Means: 0, 6 / 2 = 3, 6 / 3 = 2, 6 / 4 = 1.5, 6 / 5 = 1.2, 6 / 6 = 1, 6 / 7 = 0.86, 14 / 8 = 1.75.
    base = BaseFleet(start=2, most=32, start_s=0.0)
    assert looks(base, [0, 6, 0, 0, 0, 0, 0, 8]) == [2, 1, 3, 2, 2, 2, 1, 1, 2]


def test_the_fleet_at_the_start_counts_like_some_seconds() -> None:
    # (4 x 5) / 4 = 5, then 20 / 5 = 4, 20 / 6 = 3.3, 20 / 7 = 2.9, 20 / 8 = 2.5.
    base = BaseFleet(start=5, most=32, start_s=4.0)
    assert looks(base, [0, 0, 0, 0]) == [5, 4, 4, 3, 3]


def test_only_busy_time() -> None:
    # 0 does not count: 6, 6, 6, then (6 + 3) / 2 = 4.5.
    base = BaseFleet(start=1, most=32, start_s=0.0, busy=True)
    assert looks(base, [0, 6, 0, 0, 3]) == [1, 1, 6, 6, 6, 5]


def test_no_look_asks_for_more_than_there_is() -> None:
    base = BaseFleet(start=1, most=4, start_s=0.0)
    assert looks(base, [1000, 0]) == [1, 4, 2]


@pytest.mark.parametrize("policy", ["blitzscale:live=false", "serverlessllm:keep_alive_s=300"])
def test_instances_of_the_average_stay_when_nothing_comes(policy: str) -> None:
    # Four instances meet 2,800 tokens per second. After one such second and two without any the average is
    # 4 / 3, so two stay; after one more 4 / 4, so one.
    found = decides(f"{policy},base_start_s=0,timeout_s=0")
    assert found.act(shown([0, 1, 2, 3, 63], 0.0, arrived=2_800)).drain == ()
    second = found.act(shown([0, 1, 2, 3, 63], 1.0))
    assert second.drain == (3, 2)  # (4 + 0) / 2 = 2
    assert found.act(shown([0, 1, 63], 2.0)).drain == ()  # 4 / 3
    assert found.act(shown([0, 1, 63], 3.0)).drain == (1,)  # 4 / 4
    # Given, it is not learnt.
    fixed = decides(f"{policy},base_start_s=0,min_prefill=3,timeout_s=0")
    fixed.act(shown([0, 1, 2, 3, 63], 0.0, arrived=2_800))
    assert fixed.act(shown([0, 1, 2, 3, 63], 1.0)).drain == (3,)


def test_the_future_changes_no_decision_before_it() -> None:
    # The same requests until 10 s; then a second burst comes, or nothing any more.
    made = scenario(work=workload(spikes=(5.0, 12.0)))
    every = draw_requests(made, np.random.default_rng(3))
    decisions = []
    for requests in (every, every.between(0, ps(10))):
        policy = make_policy("blitzscale:live=false,base_start_s=0")
        decisions.append(run_episode(policy, made, seed=3, requests=requests).decisions)
    before, after = (
        [[d for d in one if (d["time_s"] <= 10) == early] for one in decisions]
        for early in (True, False)
    )
    assert before[0] == before[1] != []
    assert after[0] != after[1]


def test_other_decisions_change_no_base() -> None:
    # The same loads meet one instance or six, of which other numbers are added and drained.
    ordered = []
    for fleet in ([0, 63], [0, 1, 2, 3, 4, 5, 63]):
        policy = decides("blitzscale:live=false,base_start_s=0,timeout_s=0")
        ordered.append(
            [policy.act(shown(fleet, t, arrived=n)) for t, n in enumerate((2_800, 0, 700))]
        )
        # (4 + 0 + 1 + 0) / 4 = 1.25: two stay.
        assert policy.act(shown([0, 1, 2, 3, 63], 3.0)).drain == (3, 2)
    assert [o.drain for o in ordered[0]] != [o.drain for o in ordered[1]]


def test_bases_are_divided_when_there_are_too_few_gpus() -> None:
    # Four GPUs; 2,800 tokens per second ask for four prefill instances, 30,000 KV tokens for as many.
    found = decides("blitzscale:live=false,base_start_s=0,timeout_s=0", max_gpus=4)
    view = shown([0, 1, 62, 63], arrived=2_800, kv_tokens={63: 30_000})
    assert found._base(view, (2_800.0, 30_000.0)) == (2, 2)


@pytest.mark.parametrize(
    "values, message",
    [
        ("min_prefill=0", "min_prefill = '0': Input should be greater than or equal to 1"),
        ("base_over=night", "base_over = 'night': Input should be 'all' or 'busy'"),
        *(
            (f"decode_tokens={value}", f"decode_tokens = '{value}': Input should be {allowed}")
            for value, allowed in (
                ("0", "greater than or equal to 1"),
                ("-1", "greater than or equal to 1"),
                ("1e-300", "greater than or equal to 1"),
                ("nan", "less than or equal to 1000000000"),
                ("1e300", "less than or equal to 1000000000"),
            )
        ),
        ("prefill_tokens_per_s=0", "prefill_tokens_per_s = '0': Input should be greater"),
        ("window_s=1e-300", "window_s = '1e-300': Input should be greater than or equal to 0.001"),
        ("base_start_s=-1", "base_start_s = '-1': Input should be greater than or equal to 0"),
    ],
)
def test_slips(values: str, message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        make_policy(f"blitzscale:{values}")
