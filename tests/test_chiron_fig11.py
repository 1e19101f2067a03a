"""Chiron's Figure 11: what is claimed of converged batches."""

from __future__ import annotations

import pytest

from experiments.chiron import fig11_converged_batch as figure
from experiments.harness.claims import Verdict
from tests.small_studies import made_up
from tests.test_figures import small_run

PARAMETERS = figure.ConvergedBatch(seeds=1, ladder=(64, 512))
BATCHES = {
    "llama-3.1-8b": {"plain": 1000.0, "prefix cache": 800.0, "speculative": 500.0, "both": 400.0},
    "llama-3.1-70b": {"plain": 200.0, "prefix cache": 220.0, "speculative": 100.0, "both": 110.0},
}


@pytest.fixture
def frame():
    def row(case):
        limit = float(case["first_limit"])
        batch = {
            "chiron": BATCHES[case["llm"]][case["variant"]], "chiron-literal": 1.0, "fixed": limit
        }[case["controller"]]  # fmt: skip
        itl_s = batch / (2000 if case["controller"] == "fixed" else 4000)
        seen = {"batch": batch, "limit": 2 * batch, "limit_low": batch, "limit_high": 3 * batch}
        late = 0.02 if case["settles"] else 0.0
        return {
            **seen,
            "kv_use": 0.99,
            "tokens_per_s": batch,
            "itl_s": itl_s,
            "itl_violations": late,
        }

    return made_up(figure, PARAMETERS, row)


def claim(found, words):
    return next(one for one in found if words in one.sentence)


def part(found, words, name):
    return next(one for one in claim(found, words).parts if one.sentence == name)


def test_claims_compare_batches_as_the_paper_does(frame):
    found = figure.claims(frame, PARAMETERS)
    smaller = part(found, "prefix caching is enabled", "8B")
    assert (smaller.ours.mean, smaller.verdict) == (0.8, Verdict.REPRODUCED)
    larger = claim(found, "prefix caching is enabled")
    assert larger.unit.endswith("(70B)")
    assert larger.ours.mean == pytest.approx(1.1)
    assert larger.verdict == Verdict.NOT
    assert "KV memory holds the batch of 200" in larger.reason
    assert "99% of KV memory" in larger.reason
    # Throughput halves, and so does latency: 2 is the better of the two ratios.
    assert part(found, "throughput or latency improves", "8B, speculative").ours.mean == 2
    assert claim(found, "optimal").note.endswith("the median limit is 31 and 6 times 64")


def test_size_may_be_the_limit(frame):
    frame.loc[(frame["variant"] == "prefix cache"), "limit"] = 3000.0
    by_limit = PARAMETERS.model_copy(update={"size": "limit"})
    found = part(figure.claims(frame, by_limit), "prefix caching is enabled", "8B")
    assert found.ours.mean == 1.5


def test_the_best_fixed_limit_is_within_the_target(frame):
    assert figure.best_fixed(frame, "llama-3.1-8b", "plain", 0.3)["batch"] == 512
    assert figure.best_fixed(frame, "llama-3.1-8b", "plain", 0.2)["batch"] == 64
    assert figure.best_fixed(frame, "llama-3.1-8b", "plain", 0.01) is None


def test_what_is_printed_collapses(frame):
    optimal = claim(figure.claims(frame, PARAMETERS), "optimal batch size")
    steady, settled, printed = optimal.parts
    assert optimal.mapped
    assert (settled.sentence, settled.ours.mean) == ("Chiron, sizes seen in full", 200 / 64)
    # The best fixed limit within 0.2 s is 64.
    assert printed.ours.mean == pytest.approx(1 / 64)
    assert printed.verdict == Verdict.NOT
    assert "1 requests run at a limit of 2" in printed.reason
    numbers = {each.sentence: each.ours.mean for each in steady.parts}
    assert numbers["8B, batch"] == numbers["8B, tokens/s"] == pytest.approx(1000 / 64)
    at_best = frame.copy()
    chiron = at_best["controller"] == "chiron"
    at_best.loc[chiron, "tokens_per_s"] = 64.0
    found = claim(figure.claims(at_best, PARAMETERS), "optimal")
    verdicts = {each.sentence: each.verdict for each in found.parts[0].parts}
    assert (found.verdict, verdicts["8B, tokens/s"]) == (Verdict.NOT, Verdict.REPRODUCED)
    at_best.loc[chiron, "batch"] = 64.0
    assert claim(figure.claims(at_best, PARAMETERS), "optimal").verdict == Verdict.REPRODUCED


def test_the_target_is_met_and_throughput_is_that_of_the_best_limit(frame):
    frame.loc[frame["controller"] == "fixed", "tokens_per_s"] = 1000.0
    frame.loc[frame["controller"] == "chiron", "tokens_per_s"] = 900.0
    found = claim(figure.claims(frame, PARAMETERS), "while maximizing throughput")
    steady, settled, printed = found.parts
    assert (found.verdict, steady.verdict, printed.verdict) == (
        Verdict.REPRODUCED,
        Verdict.REPRODUCED,
        Verdict.NOT,
    )
    # Two models, four variants, two targets, and both throughput and latency of each.
    assert len(steady.parts) == 2 * 4 * 2 * 2
    met = [part.ours.mean for part in settled.parts if part.sentence.endswith("the target")]
    assert met == pytest.approx([98] * 16)
    # The lowest number in front: the one that is shown.
    means = [part.ours.mean for part in steady.parts]
    assert means == sorted(means)
    frame.loc[frame["settles"], "itl_violations"] = 0.1
    found = claim(figure.claims(frame, PARAMETERS), "while maximizing throughput")
    assert found.parts[1].verdict is Verdict.NOT


def test_what_holds_the_batch_is_looked_up(frame):
    free = figure.claims(frame.assign(kv_use=0.3), PARAMETERS)
    assert "the limit holds the batch of 200" in claim(free, "prefix caching is enabled").reason


@pytest.mark.parametrize(
    "changes, n",
    [
        ({"llms": ("llama-3.1-8b",)}, 5),
        ({"slos_s": (0.2,)}, 5),
        ({"controllers": ("chiron",)}, 5),
        ({"controllers": ("chiron-literal",)}, 2),
    ],
)
def test_what_was_not_run_is_left_out(frame, changes, n):
    parameters = PARAMETERS.model_copy(update=changes)
    found = figure.claims(frame, parameters)
    assert len(found) == n
    figure.plot(frame, parameters)


def test_without_a_fixed_limit_within_the_target_nothing_is_optimal(frame):
    slow = frame.assign(itl_s=9.0)
    assert not [c for c in figure.claims(slow, PARAMETERS) if "optimal" in c.sentence]
    figure.plot(slow, PARAMETERS)


def test_cases_and_a_run():
    # seeds x models x variants x (2 kinds and sizes seen in full, 2 targets); ladder
    assert len(figure.cases(figure.ConvergedBatch(seeds=2, ladder=(32,)))) == 2 * 2 * 4 * 6 + 2 * 4
    without = figure.ConvergedBatch(seeds=2, ladder=(32,), settled_iterations=0)
    assert len(figure.cases(without)) == 2 * 2 * 4 * 4 + 2 * 4
    frame = small_run("chiron-fig11")
    one = frame[frame["controller"] == "fixed"].iloc[0]
    assert one["limit"] == one["batch"] == one["first_limit"] == 32
    assert one["itl_violations"] == 0
