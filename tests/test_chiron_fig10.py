"""Chiron's Figure 10: claims on made-up rows, and one small run."""

from __future__ import annotations

import pytest

from experiments.chiron import fig10_batch_queue as fig10
from experiments.harness.claims import Verdict
from tests.small_studies import made_up
from tests.test_figures import small_run

PARAMETERS = fig10.BatchQueue(
    seeds=1, small_queues=(100, 700_000), large_queues=(80_000,), mixed_queues=(1000,)
)


@pytest.fixture
def as_in_the_paper():
    """Rows that say what the paper says; the batch size is 50 times that of Llumnix in its text."""

    def row(case):
        chiron = case["policy_name"].startswith("chiron")
        return {
            "slo_attainment": 1.0 if chiron else 0.7,
            "batch_attainment": 0.99 if chiron else 0.5,
            "interactive_attainment": 1.0,
            "throughput_per_instance": 4.0 if chiron else 1.0,
            "gpus": 9.0 if chiron else 30.0,
            "instances": 9.0 if chiron else 30.0,
            "small_batch_limit": 3200.0 if chiron else None,
            "small_batch_running": 700.0 if chiron else None,
            "large_batch_limit": 2500.0 if chiron else None,
            "large_batch_running": 300.0 if chiron else None,
        }

    return made_up(fig10, PARAMETERS, row)


WORDS = ("300 %", "70 %", "across all", "50 times", "700k", "higher SLO")


def by_words(frame):
    """The claims by a word of their sentences."""
    found = fig10.claims(frame, PARAMETERS)
    assert len(found) == len(WORDS)
    return {word: claim for claim in found for word in WORDS if word in claim.sentence}


def test_the_papers_numbers_are_reproduced(as_in_the_paper):
    found = by_words(as_in_the_paper)
    for claim in found.values():
        assert claim.verdict is Verdict.REPRODUCED, claim
        assert claim.how
    ours = [found[word].ours.mean for word in WORDS]
    assert ours == pytest.approx([300, 70, 100, 3200, 99, 100])
    # 3200 is 50 times the limit of the text, 2500 is 39 times.
    parts = {part.sentence: part.ours.mean for part in found["50 times"].parts}
    assert parts["small, over 64"] == 50
    assert parts["large, over 64"] == pytest.approx(39.0625)


def test_throughput_and_gpus_count_only_with_the_same_attainment(as_in_the_paper):
    late = as_in_the_paper.copy()
    late.loc[late["policy_name"].str.startswith("chiron"), "slo_attainment"] = 0.6
    found = by_words(late)
    for word, number in (("300 %", 300), ("70 %", 70), ("across all", 0), ("higher SLO", 0)):
        assert (found[word].ours.mean, found[word].verdict) == (
            pytest.approx(number),
            Verdict.NOT,
        )
        assert found[word].reason
    assert found["300 %"].reason.startswith("does not count, since it is at ")


def test_one_good_queue_length_does_not_make_it_higher_everywhere(as_in_the_paper):
    mostly = as_in_the_paper.copy()
    lost = mostly["policy_name"].str.startswith("chiron") & (mostly["load"] != 700_000)
    mostly.loc[lost, ["throughput_per_instance", "slo_attainment"]] = [0.9, 0.6]
    found = by_words(mostly)
    for word in ("across all", "higher SLO"):
        # One of four.
        assert (found[word].ours.mean, found[word].verdict) == (25, Verdict.NOT)
    assert found["300 %"].verdict is Verdict.REPRODUCED
    assert "at 1 of 4 loads" in found["300 %"].setting


def test_a_small_reserve_is_a_setting_of_its_own(as_in_the_paper):
    lean = as_in_the_paper["policy_name"] == "chiron-lean"
    frame = as_in_the_paper.copy()
    frame.loc[frame["policy_name"] == "chiron", "throughput_per_instance"] = 2.0
    frame.loc[lean, "throughput_per_instance"] = 3.5
    most = by_words(frame)["300 %"]
    numbers = {part.sentence: part.ours.mean for part in most.parts}
    assert numbers["theta 1/3, Llumnix's limit 64"] == 100
    assert numbers["theta 0.8, Llumnix's limit 64"] == 250
    assert (most.verdict, most.ours.mean) == (Verdict.REPRODUCED, 250)
    assert "section 5.2" in most.setting


def test_long_queues_have_more_seeds():
    cases = fig10.cases(fig10.BatchQueue(seeds=4, other_seeds=2))
    seeds = {
        load: {case["seed"] for case in cases if case["load"] == load} for load in (700_000, 80_000)
    }
    assert [len(found) for found in seeds.values()] == [4, 2]


def test_equal_attainment_is_not_higher(as_in_the_paper):
    same = by_words(as_in_the_paper.assign(slo_attainment=1.0))["higher SLO"]
    assert same.verdict is Verdict.NOT
    assert same.unit.startswith("% of the 0 (of 4) queue lengths")


def test_a_run():
    found = small_run("chiron-fig10").iloc[0]
    assert found["policy"] == "chiron"
    assert found["batch_attainment"] > 0.5
    assert found["interactive_attainment"] > 0.5
    assert found["gpus"] <= 50
