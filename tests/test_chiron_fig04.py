"""Chiron's Figure 4: spikes of known counts, and the shipped services."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from experiments.chiron import fig04_arrival_spikes as fig04
from experiments.chiron.spikes import (
    consecutive,
    counts_in_intervals,
    gamma_counts,
    quantiles,
    spike_ratios,
)
from experiments.harness.claims import Verdict
from tests.test_figures import small, small_run


def test_counts_leave_out_what_lies_beyond_the_last_whole_interval():
    counts = counts_in_intervals([0.0, 1.9, 2.0, 7.9, 8.1], width_s=2.0, horizon_s=8.5)
    assert counts.tolist() == [2, 1, 0, 1]


def test_pairs_slide_over_the_bins():
    pairs = consecutive([1, 2, 3, 4, 5], width=2, step=1)
    assert pairs.tolist() == [[2, 3, 7], [3, 5, 9]]
    assert consecutive([1, 2, 3], width=2, step=1).tolist() == []


def test_an_empty_interval_counts_as_one_request_or_is_left_out():
    before, after = [2, 0, 0, 4], [6, 5, 0, 0]
    assert spike_ratios(before, after).tolist() == [3.0, 5.0, 0.0, 0.0]
    assert spike_ratios(before, after, least_before=0).tolist() == [3.0, 0.0]


def test_no_values_have_no_quantiles():
    assert np.isnan(quantiles([], [0.5, 0.9])).all()
    assert quantiles([1, 2, 3], 0.5).tolist() == [2.0]


def test_gamma_counts_have_the_rate_and_the_dispersion_of_a_renewal_process():
    counts = gamma_counts(20.0, 4.0, 30.0, 90_000.0, np.random.default_rng(0))
    assert len(counts) == 3000
    assert counts.mean() == pytest.approx(600, rel=0.02)
    assert counts.var() / counts.mean() == pytest.approx(16, rel=0.12)


def test_tables_add_up_over_their_common_time():
    chat, _ = fig04.bins_of("azure-conv-2023")
    code, _ = fig04.bins_of("azure-code-2023")
    both, bin_s = fig04.bins_of("azure-conv-2023+azure-code-2023")
    n = min(len(chat), len(code))
    assert bin_s == 1.0
    assert both.tolist() == (chat[:n] + code[:n]).tolist()
    with pytest.raises(ValueError, match="no such counts table"):
        fig04.bins_of("azure-conv-2023+nothing")


def test_percentiles_claims_and_picture_of_the_chat_service():
    frame, parameters = small_run("chiron-fig04"), small("chiron-fig04")
    found = fig04.percentiles(frame, parameters).loc[("azure-conv-2023", 15)]
    bins, _ = fig04.bins_of("azure-conv-2023")
    counts = bins[: len(bins) // 15 * 15].reshape(-1, 15).sum(axis=1)
    assert found["p90"] == pytest.approx(np.quantile(counts[1:] / counts[:-1], 0.9))
    assert found["empty"] == 0
    assert 1 < found["poisson_p90"] < found["poisson_p99"] < 2
    (claim,) = fig04.claims(frame, parameters)
    # Noise alone lies above one, so that a percentile is a level and no direction.
    assert claim.verdict is Verdict.NOT
    assert "a Poisson process of its rate has chat p90 1." in claim.reason
    assert len(fig04.plot(frame, parameters).axes) == 2


def test_a_cluster_leads_and_single_services_are_parts_of_it():
    parameters = small("chiron-fig04").model_copy(update={"tables": tuple(fig04.SERVICES)})
    frame = pd.DataFrame(
        {**case, **row} for case in fig04.cases(parameters) for row in fig04.run(case)
    )
    (claim,) = fig04.claims(frame, parameters)
    assert [part.sentence for part in claim.parts] == ["chat and code", "chat", "code"]
    assert claim.verdict is claim.parts[0].verdict
    assert "; chat p90 1.1" in claim.note
