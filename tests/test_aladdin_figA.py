"""Aladdin's appendix A in small: workers that groups cost, and claims on made-up groups."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from baselines.aladdin.groups import grouped_workers
from experiments.aladdin import figA_groups as figA
from experiments.aladdin.population import ongoing
from experiments.aladdin.setting import rules_of
from tests import small_studies
from tests.test_figures import small_run


def test_a_run_packs_what_the_baseline_does():
    rows = small_run("aladdin-figA").to_dict("records")
    assert [row["n_groups"] for row in rows] == [1, 2, 3]  # 100 groups have no worker each
    rules = rules_of(rows[0]["llm"], figA.GPU, gamma=0.5, theta=0.9)
    rng = np.random.default_rng(rows[0]["seed"])
    there = ongoing(rows[0]["lengths"], 25.0, 0.8 * rules.itl_slo_s, rng)
    for row in rows:
        workers = grouped_workers(there, row["n_groups"], rules)
        assert (row["workers"], row["smallest"]) == (sum(workers), min(workers))
        assert row["centralised"] == rows[0]["workers"]
        assert row["round_s"] >= 0


PARAMETERS = figA.Groups(seeds=2, rates_per_s=(50, 100, 200), groups=(2, 4, 8, 10))


def made_up(each: float, round_s) -> pd.DataFrame:
    """40 workers at 200 requests/s; each group needs `each` more."""

    def rows(case):
        rate = case["rate_per_s"]
        return [
            {
                "n_groups": groups, "centralised": rate / 5, "round_s": round_s(rate / groups),
                "workers": rate / 5 + (groups * each if groups > 1 else 0),
            }
            for groups in case["groups"]
        ]  # fmt: skip

    return small_studies.made_up(figA, PARAMETERS, rows)


def test_the_paper_s_rule_is_reproduced():
    frame = made_up(0.4, lambda rate: 1e-4 * rate * np.log2(rate))
    found = small_studies.judged(figA, frame, PARAMETERS).values()
    extra, half, latency, predictable = found
    # Eight groups of five workers: 3.2 more than 40.
    assert extra.ours.mean == pytest.approx(8)
    assert half.ours.mean == pytest.approx(0.4)
    assert latency.ours.mean == pytest.approx(25 * np.log2(25) / (200 * np.log2(200)))
    assert predictable.ours.mean == pytest.approx(1, rel=0.02)
    assert set(small_studies.verdicts(found)) == {"reproduced"}
    assert "plans" in latency.note


def test_dear_groups_and_long_rounds_are_not():
    frame = made_up(2.0, lambda rate: 1.0 + 1e-4 * rate)
    extra, half, latency, _ = figA.claims(frame, PARAMETERS)
    assert extra.verdict == "not reproduced"
    assert half.verdict == "same direction, another size"
    assert latency.verdict == "same direction, another size"
    assert "no plan" in latency.note  # a round takes more than a second


def test_without_groups_nothing_is_said():
    frame = made_up(0.5, lambda rate: 1e-3 * rate)
    assert figA.claims(frame[frame["n_groups"] == 1], PARAMETERS) == []
