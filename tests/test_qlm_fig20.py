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


def claims(programme, search=2.0):
    """Where the programme takes so many seconds, or None, by LLM and length."""
    parameters = fig20.Overhead(seeds=2, queues=(1000, 10_000, 400_000))
    size = {"mistral-7b": 1000, "vicuna-13b": 500, "llama-2-70b": 1000}

    def row(case):
        own = programme[case["llm"]][parameters.queues.index(case["queue"])]
        return {
            "seconds": own if case["method"] == "programme" else search,
            "groups": case["queue"] // size[case["llm"]],
            "instances": 50,
            "feasible": False,
            "optimal": False,
        }

    return judged(fig20, made_up(fig20, parameters, row), parameters).values()


def test_the_programme_and_not_the_search_earns_the_verdict():
    seconds = {"mistral-7b": (0.1, 4.0, None), "vicuna-13b": (0.3, 6.0, None)}
    queue, larger, search = claims({**seconds, "llama-2-70b": (0.1, 3.0, None)})
    assert (queue.ours.mean, queue.verdict) == (10_000, "not reproduced")
    assert "4 s for 10 groups (10,000 requests)" in queue.reason
    # At 10,000 requests 20 groups in place of 10.
    assert (larger.ours.mean, larger.verdict) == (1.5, "reproduced")
    assert (search.ours.mean, search.verdict, search.question) == (2, "reproduced", True)


def test_a_programme_that_solves_it_all():
    queue, larger, search = claims(dict.fromkeys(fig20.Overhead().llms, (0.1, 1.0, 5.0)), 8.0)
    assert (queue.ours.mean, queue.verdict) == (400_000, "reproduced")
    assert larger.verdict == "not reproduced"
    assert search.verdict == "not reproduced"
