"""QLM's Figure 4 in small: evicting makes room at the next boundary."""

from __future__ import annotations

import pandas as pd
import pytest

from experiments.qlm import fig04_eviction as fig04
from tests.test_figures import small, small_run


def runs(burst):
    frame = small_run("qlm-fig04")
    return frame[frame["burst"] == burst].set_index("serving")


def test_evicted_requests_make_room_at_the_next_boundary():
    found = runs(8)
    # Half a second is less than 8 of 16 requests of 472 tokens take to finish, more than an iteration.
    assert found.loc["waits", "blocked_s"] > 0.5 > 10 * found.loc["evicts", "blocked_s"]
    assert found.loc["evicts", "longest_s"] <= 3 * found.loc["evicts", "iteration_s"]
    assert found.loc["waits", "evictions"] == 0
    assert 0 < found.loc["evicts", "evictions"] <= 2 * 8
    assert (found["first_token_s"] > found["blocked_s"]).all()
    assert found["blocked_s"]["free"] <= found["blocked_s"]["evicts"]


def test_departures_follow_from_iterations():
    found = runs(1).iloc[0]
    # 16 requests of some 472 tokens: one leaves every 472 / 16 iterations.
    assert found["departure_s"] / found["iteration_s"] == pytest.approx(472 / 16, rel=0.3)


def test_a_run_that_says_nothing_is_refused():
    with pytest.raises(ValueError, match="queued = 20: the batch requests do not outlast the run"):
        fig04.run({**fig04.cases(small("qlm-fig04"))[0], "queued": 20})


def made_up(waits, evicts, free):
    parameters = fig04.Eviction(seeds=2, llms=("vicuna-13b",), bursts=(1, 8))
    seconds = {"waits": waits, "evicts": evicts, "ahead": evicts, "free": free}
    frame = pd.DataFrame(
        {
            **case,
            "blocked_s": seconds[case["serving"]] * case["burst"] ** (case["serving"] == "waits"),
            "iteration_s": 0.1,
        }
        for case in fig04.cases(parameters)
    )
    return fig04.claims(frame, parameters)


def test_claims_on_made_up_rows():
    waits, ratio = made_up(2.0, 0.1, 0.08)
    assert (waits.ours.mean, waits.verdict) == (16, "reproduced")
    assert (ratio.ours.mean, ratio.verdict) == (pytest.approx(160), "reproduced")
    assert ratio.note == "by size of the burst: 20x at 1, 1.6e+02x at 8"


def test_what_is_shorter_but_not_by_so_much():
    waits, ratio = made_up(0.5, 0.1, 0.1)
    assert (waits.verdict, ratio.verdict) == ("not reproduced", "same direction, another size")
    assert waits.reason == "mean blocking 0.5 s at 1, 4 s at 8"
    assert "one of them finishes soon" in ratio.reason


def test_the_tokens_of_an_iteration_go_up_to_the_context():
    parameters = fig04.Eviction(seeds=1, bursts=(1,))
    found = {(case["llm"], case["prefill_tokens"]) for case in fig04.cases(parameters)}
    assert found == {
        ("mistral-7b", 4096),
        ("mistral-7b", 32_768),
        ("vicuna-13b", 4096),
        ("llama-2-70b", 4096),
    }
    frame = pd.DataFrame(
        {
            **case,
            "blocked_s": 1.0 if case["serving"] == "waits" else 4.096 / case["prefill_tokens"],
            "iteration_s": 0.1,
        }
        for case in fig04.cases(parameters)
    )
    of_each = {part.sentence: part for part in fig04.claims(frame, parameters)[1].parts}
    mistral = of_each["Mistral-7B, 1 x a100-80gb"].parts
    assert [part.ours.mean for part in mistral] == pytest.approx([1000, 8000])
