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


def test_claims_and_picture():
    parameters = small()
    frame = rows(parameters)
    rises, grows = fig05.claims(frame, parameters)
    assert rises.verdict is Verdict.REPRODUCED
    names = [part.sentence for part in rises.parts]
    assert len(names) == 6
    fleet = rises.parts[names.index("fleet, TTFT 10 s, small model")]
    assert fleet.ours.mean == pytest.approx(3 / 1.25)  # (4 + 8) / (4 + 1)
    # Of fleets, which are counted whole, nothing is said in proportion.
    peak, spike = grows.parts
    assert [part.sentence for part in peak.parts] == [
        "peak over mean, small model", "peak over mean, large model"
    ]  # fmt: skip
    beyond = [math.log(math.exp(0.1 * cv) - 1) for cv in (1, 4, 8)]
    assert spike.ours.mean == pytest.approx(np.polyfit(np.log([1, 4, 8]), beyond, 1)[0])
    assert len(fig05.plot(frame, parameters).axes) == 6


def test_one_reading_in_proportion_is_enough_and_one_that_does_not_rise_is_too_many():
    parameters = small()
    frame = rows(parameters)
    frame.loc[frame["reading"] == fig05.SPIKE, "needed"] = 1.5
    rises, grows = fig05.claims(frame, parameters)
    assert (rises.verdict, rises.ours.mean) == (Verdict.NOT, 1)
    assert rises.unit.endswith("(spike, small model)")
    assert [part.verdict is Verdict.REPRODUCED for part in grows.parts] == [True, False]
    assert grows.verdict is Verdict.REPRODUCED


def test_a_fleet_that_nothing_suffices_for_is_infinite():
    parameters = small()
    frame = rows(parameters)
    frame["needed"] = frame["needed"].astype(object)
    frame.loc[(frame["reading"] == fig05.FLEET) & (frame["cv"] == 8.0), "needed"] = None
    rises, _ = fig05.claims(frame, parameters)
    infinite = [part.sentence for part in rises.parts if math.isinf(part.ours.mean)]
    assert infinite == ["fleet, TTFT 10 s, small model", "fleet, TTFT 1 s, small model"]
    fig05.plot(frame, parameters)


def test_what_is_not_there_is_not_claimed():
    one = small(cvs=(4.0,))
    assert fig05.claims(rows(one), one) == []
    median = small(percentiles=(50.0,))
    assert fig05.claims(rows(median), median) == []
