"""QLM's Figure 20 in small. Times are the machine's: nothing here depends on them."""

from __future__ import annotations

import pytest

from experiments.qlm import fig20_overhead as fig20
from tests.small_studies import judged, made_up
from tests.test_figures import small, small_run


def case(**values):
    return fig20.cases(small("qlm-fig20").model_copy(update=values))[0]


def test_the_queue_is_cut_into_groups_of_four_batches():
    # A batch of 256 requests of some 600 tokens fits on an A100: groups of 1,024.
    problem = fig20.queue_of(case())
    assert problem.requests.tolist() == [1024, 1024, 952]
    assert (problem.instances, problem.groups) == (4, 3)
    assert problem.work_s[0, 2] == pytest.approx(problem.work_s[0, 0] * 952 / 1024)
    # One instance has four GPUs.
    assert fig20.queue_of(case(llms=("llama-2-70b",), gpus=50)).instances == 12


@pytest.mark.parametrize("method", ["plan", "programme", "edf"])
def test_a_call_is_made(method):
    frame = small_run("qlm-fig20")
    (row,) = frame[frame["method"] == method].to_dict("records")
    assert row["seconds"] > 0
    assert row["feasible"]  # four instances for three groups: nobody waits


def test_a_large_programme_is_not_tried():
    (row,) = fig20.run({**case(programme_groups=2), "method": "programme"})
    assert row["seconds"] is None


def claims(seconds):
    parameters = fig20.Overhead(seeds=2)
    groups = {"mistral-7b": 391, "vicuna-13b": 618, "llama-2-70b": 391}

    def row(case):
        programme, llm = case["method"] == "programme", case["llm"]
        found = {
            "seconds": None if programme else seconds[llm],
            "feasible": False,
            "optimal": False,
        }
        return {"groups": groups[llm], "instances": 50, **found}

    return judged(fig20, made_up(fig20, parameters, row), parameters).values()


def test_claims_on_made_up_rows():
    time, smaller = claims({"mistral-7b": 2.0, "vicuna-13b": 3.0, "llama-2-70b": 1.0})
    assert (time.ours.mean, time.verdict) == (2, "reproduced")
    assert time.note.endswith("ours a search's: the programme was not tried")
    # The 70B has groups as large as the 7B's, so nothing is said of it.
    assert (smaller.ours.mean, smaller.verdict) == (1.5, "reproduced")


def test_what_takes_longer_is_not_reproduced():
    time, smaller = claims({"mistral-7b": 8.0, "vicuna-13b": 6.0, "llama-2-70b": 1.0})
    assert (time.verdict, smaller.verdict) == ("not reproduced", "not reproduced")
    assert "618 groups on 50 instances" in smaller.reason
