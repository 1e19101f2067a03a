"""QLM's Figure 18 in small: the estimator in front of an instance at work and of an idle one."""

from __future__ import annotations

import numpy as np
import pytest

from experiments.qlm import fig18_estimator as fig18
from experiments.qlm.setting import lengths
from tests.small_studies import made_up
from tests.test_figures import small_run


@pytest.fixture
def frame():
    return small_run("qlm-fig18")


def test_groups_are_of_four_batches(frame):
    # A batch of 16 fits into memory many times over.
    assert sorted(set(frame["requests"])) == [32, 256]


def test_the_history_has_seen_other_requests_than_those_that_wait(frame):
    rng = np.random.default_rng(int(frame["seed"].iloc[0]) + fig18.OTHER_SEEDS)
    outputs = lengths("sharegpt-single-turn", 500, rng)["output_tokens"]
    # 500 requests and a prior of 32 at 300 tokens.
    assert frame["mean_output"].iloc[0] == pytest.approx((outputs.sum() + 32 * 300) / 532)


def test_an_idle_instance_keeps_nobody_of_the_first_batch_waiting(frame):
    short = frame[frame["groups_in_queue"] == 0.5].set_index(["throughput", "start"])
    assert short.loc[("log", "empty"), "first_wait_s"] == 0
    assert short.loc[("log", "empty"), "bias"] > 0.3
    long = frame[frame["groups_in_queue"] == 4].set_index(["throughput", "start"])
    assert long.loc[("log", "busy"), "r2"] > 0.8


def claims(r2):
    parameters = fig18.Estimator(seeds=2, llms=("mistral-7b",), groups=(0.25, 4, 8))
    rows = [
        {
            "throughput": throughput,
            "start": start,
            "groups_in_queue": n,
            "requests": round(1000 * n),
            "r2": r2 if n >= 4 else 0.5,
            "bias": 0.3 if start == "empty" else -0.1,
            "mean_wait_s": 5.0,
            "first_wait_s": 1.0,
        }
        for throughput in fig18.THROUGHPUTS
        for start in fig18.STARTS
        for n in parameters.groups
    ]
    return fig18.claims(made_up(fig18, parameters, lambda _: rows), parameters)


@pytest.mark.parametrize("r2, verdict", [(0.995, "reproduced"), (0.98, "not reproduced")])
def test_claims_on_made_up_rows(r2, verdict):
    four, rises, short = claims(r2)
    assert [part.verdict for part in four.parts] == [verdict] * 3
    assert rises.ours.mean == pytest.approx(r2 - 0.5)
    # The profiled batch leads; at work estimates are 10 % short.
    assert (short.verdict, short.ours.mean) == ("not reproduced", pytest.approx(-0.1))
    assert [part.verdict for part in short.parts] == [
        "not reproduced",
        "not reproduced",
        "reproduced",
    ]
    assert short.note.startswith("read otherwise: -0.1 bias")
