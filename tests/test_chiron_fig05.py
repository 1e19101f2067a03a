"""Chiron's Figure 5: what is needed, found by halving and held against even arrivals."""

from __future__ import annotations

import math

import numpy as np
import pytest

from experiments.chiron import fig05_overprovisioning as fig05
from experiments.chiron.spikes import gamma_counts
from experiments.harness.claims import Verdict
from tests.small_studies import made_up


@pytest.mark.parametrize("threshold, found", [(1, 1), (7, 7), (16, 16), (17, None)])
def test_the_least_number_is_found(threshold, found):
    asked = []

    def reached(n):
        asked.append(n)
        return float(n >= threshold)

    assert fig05.least(reached, 0.5, 16) == found
    assert len(asked) <= 6


def small(**changes):
    values = {
        "seeds": 1,
        "cvs": (1.0, 4.0, 8.0),
        "percentiles": (50.0, 99.0),
        "intervals": 100,
        "simulated_s": 300.0,
        "left_out_s": 100.0,
    }
    return fig05.OverProvisioning(**{**values, **changes})


def test_drawn_readings_are_percentiles_of_the_counts():
    case = next(c for c in fig05.cases(small()) if c["kind"] == "drawn" and c["cv"] == 4.0)
    rows = {(row["reading"], row["percentile"]): row["needed"] for row in fig05.run(case)}
    counts = gamma_counts(50.0, 4.0, 15.0, 1500.0, np.random.default_rng(case["seed"]))
    assert rows[fig05.SPIKE, 99.0] == pytest.approx(np.quantile(counts[1:] / counts[:-1], 0.99))
    assert rows[fig05.PEAK, 50.0] == pytest.approx(np.median(counts) / 750)


def test_a_tighter_target_and_a_higher_percentile_need_no_smaller_fleet():
    parameters = small(cvs=(8.0,), batch_limit=64)
    case = [c for c in fig05.cases(parameters) if c["kind"] == "simulated"][-1]
    assert case["cv"] == 8.0
    needed = {(row["ttft_s"], row["percentile"]): row["needed"] for row in fig05.run(case)}
    assert 2 <= needed[10.0, 50.0] <= needed[10.0, 99.0] <= needed[1.0, 99.0]
    assert needed[10.0, 50.0] <= needed[1.0, 50.0]


def rows(parameters):
    """Readings that follow exp(k * cv), and fleets of 4 for even arrivals and 4 + cv else; of two seeds."""

    def readings(case):
        cv = case["cv"]
        if case["kind"] == "drawn":
            return [
                {"reading": reading, "percentile": p, "needed": math.exp(0.1 * cv * p / 99)}
                for reading in (fig05.SPIKE, fig05.PEAK)
                for p in parameters.percentiles
            ]
        extra = {p: cv if cv >= 1 else 3 * (p == 99) for p in parameters.percentiles}
        return [
            {"reading": fig05.FLEET, "percentile": p, "needed": 4 + extra[p], "ttft_s": t}
            for p in parameters.percentiles
            for t in parameters.ttfts_s
        ]

    return made_up(fig05, parameters.model_copy(update={"seeds": 2}), readings)


def test_fleets_are_held_against_what_carries_even_arrivals():
    parameters = small()
    found = fig05.over_provisioning(rows(parameters), parameters)
    fleets = found[found["reading"] == fig05.FLEET]
    assert parameters.even_cv not in set(fleets["cv"])
    assert set(fleets[fleets["cv"] == 8.0]["needed"]) == {3.0}  # (4 + 8) / 4, at both percentiles
    spikes = found[(found["reading"] == fig05.SPIKE) & (found["percentile"] == 99)]
    assert spikes[spikes["cv"] == 8]["needed"].iloc[0] == pytest.approx(math.exp(0.8))


def claim_of(frame, parameters, *words):
    return next(
        c for c in fig05.claims(frame, parameters) if all(word in c.sentence for word in words)
    )


def test_claims_and_picture():
    parameters = small()
    frame = rows(parameters)
    fleet = claim_of(frame, parameters, "3 suffices", "(fleet, TTFT 10 s, p99, small model)")
    assert (fleet.verdict, fleet.ours.mean) == (Verdict.REPRODUCED, 3.0)
    spike = claim_of(frame, parameters, "3 suffices", "(spike, p99, small model)")
    assert spike.verdict is Verdict.REPRODUCED  # less than 3 is enough
    assert spike.ours.mean == pytest.approx(math.exp(0.8))
    grows = claim_of(frame, parameters, "proportional", "(spike, p99, large model)")
    beyond = [math.log(math.exp(0.1 * cv) - 1) for cv in (1, 4, 8)]
    assert grows.ours.mean == pytest.approx(np.polyfit(np.log([1, 4, 8]), beyond, 1)[0])
    assert len(fig05.plot(frame, parameters).axes) == 6
    assert not any("proportional" in c.sentence and "fleet" in c.sentence
                   for c in fig05.claims(frame, parameters))  # fmt: skip


def test_what_is_needed_up_to_a_burstiness_is_the_most_of_all_up_to_it():
    parameters = small()
    frame = rows(parameters)
    frame.loc[(frame["reading"] == fig05.SPIKE) & (frame["cv"] == 4.0), "needed"] = 3.5
    spike = claim_of(frame, parameters, "3 suffices", "(spike, p99, large model)")
    assert (spike.verdict, spike.ours.mean) == (Verdict.NOT, 3.5)
    assert "750 requests (small) 2.23, 600 requests (large) 2.23" in spike.reason
    rises = claim_of(frame, parameters, "More burstiness", "(spike, p99, large model)")
    assert rises.note == "rises on 1 of 2 steps of the CV"


def test_a_fleet_that_nothing_suffices_for_is_infinite():
    parameters = small()
    frame = rows(parameters)
    frame["needed"] = frame["needed"].astype(object)
    frame.loc[(frame["reading"] == fig05.FLEET) & (frame["cv"] == 8.0), "needed"] = None
    fleet = claim_of(frame, parameters, "3 suffices", "(fleet, TTFT 10 s, p99, small model)")
    assert fleet.verdict is Verdict.NOT
    assert math.isinf(fleet.ours.mean)
    fig05.plot(frame, parameters)


def test_what_is_not_there_is_not_claimed():
    one = small(cvs=(4.0,))
    assert fig05.claims(rows(one), one) == []
    median = small(percentiles=(50.0,))
    assert fig05.claims(rows(median), median) == []
