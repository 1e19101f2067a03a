"""Length tables: marginals, correlation and predictions of generated lengths against the data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmscale_env.workload.arrivals import Arrivals
from llmscale_env.workload.build_tables import build_tables, single_turn
from llmscale_env.workload.config import (
    FixedLengths,
    LognormalLengths,
    PredictorConfig,
    TableLengths,
)
from llmscale_env.workload.generate import draw_lengths, predict_outputs
from llmscale_env.workload.stats import spearman
from llmscale_env.workload.tables import (
    DATA,
    INPUT_LEVELS,
    OUTPUT_LEVELS,
    LengthTable,
    load_clipped,
    load_lengths,
    names,
    places_of,
    round_tokens,
)

SHARED = Path(__file__).resolve().parents[1].parent / "shared" / "data" / "traces"
N = 200_000

# Published beside the raw data: mean, p50, p99 of input; mean, p50, p99 of output; Spearman.
PUBLISHED = {
    "azure-conv": (1155, 1020, 4142, 211, 129, 601, 0.07),
    "azure-code": (2048, 1469, 7436, 27.9, 13, 251, -0.02),
    "sharegpt": (2340, 1730, 7434, 439, 415, 998, 0.05),
    "arxiv": (2588, 2730, 3933, 291, 167, 3271, -0.11),
    "long-output": (1067, 1037, 1800, 1613, 1601, 2533, 0.81),
    "m-small": (118, 39, 1474, 14.8, 3, 142, 0.47),
    "m-large": (913, 599, 5226, 157, 53, 890, 0.12),
    "reasoning": (1217, 208, 22730, 1534, 780, 12912, -0.38),
}


def draws(name: str, n: int = N, seed: int = 1, **keys):
    config = TableLengths(table=name, **keys)
    arrivals = Arrivals(np.zeros(n, dtype=np.int64))
    return draw_lengths(config, arrivals, np.random.default_rng(seed))


@pytest.mark.skipif(not SHARED.is_dir(), reason="no raw traces here")
def test_turns_of_sharegpt_are_geometric():
    """The figures of docs/workloads.md on conversations, from the file whose rows are turns in order."""
    columns = {"delimiter": ",", "skip_header": 1, "usecols": (1, 2), "dtype": np.int64}
    given, made = np.genfromtxt(SHARED / "sharegpt_lengths.csv.gz", unpack=True, **columns)
    history = np.append(2**31, (given + made)[:-1])
    opens = given <= history
    turns = np.diff(np.append(np.flatnonzero(opens), len(given)))
    assert turns.mean() == pytest.approx(5.4, abs=0.05)
    shares = np.bincount(turns, minlength=30)[1:30] / len(turns)
    assert np.round(100 * shares[:5]).tolist() == [20, 16, 11, 9, 7]
    geometric = (1 - 1 / 5.4) ** np.arange(29) / 5.4
    assert np.abs(np.cumsum(shares) - np.cumsum(geometric)).max() < 0.03
    messages = (given - history)[~opens]
    assert round(messages.mean()) == 134
    assert np.median(messages) == 26


def test_every_shipped_table_has_a_published_row_or_is_derived():
    assert set(names("lengths")) == {*PUBLISHED, "sharegpt-single-turn"}


@pytest.mark.parametrize("name", PUBLISHED)
def test_generated_lengths_match_the_published_statistics(name):
    x, y = draws(name)
    x_mean, x50, x99, y_mean, y50, y99, rho = PUBLISHED[name]
    assert x.mean() == pytest.approx(x_mean, rel=0.03)
    assert y.mean() == pytest.approx(y_mean, rel=0.03)
    assert np.percentile(x, [50, 99]) == pytest.approx([x50, x99], rel=0.04, abs=1)
    assert np.percentile(y, [50, 99]) == pytest.approx([y50, y99], rel=0.05, abs=1)
    assert spearman(x, y) == pytest.approx(rho, abs=0.02)


def test_single_turn_is_what_its_table_says():
    about = dict(load_lengths("sharegpt-single-turn").about)
    assert about["kind"].startswith("derived")
    x, y = draws("sharegpt-single-turn")
    assert x.max() <= 1024
    # The rows behind the table have means of 136 and 472 tokens (workload/data/README.md).
    assert x.mean() == pytest.approx(136, rel=0.03)
    assert y.mean() == pytest.approx(472, rel=0.03)


def test_single_turn_rows_by_hand():
    # A conversation of two turns (100, then 100 + 50 + 30), another, one too long, one too short.
    x = np.array([100, 180, 90, 2000, 3, 60])
    y = np.array([50, 20, 40, 10, 60, 3])
    assert single_turn(x, y).tolist() == [True, False, True, False, False, False]


@pytest.mark.parametrize("name", names("lengths"))
def test_tables_are_small_well_formed_and_say_where_they_come_from(name):
    path = DATA / f"lengths_{name}.csv"
    assert path.stat().st_size < 60_000
    table = load_lengths(name)
    assert {"source", "licence", "kind", "rows"} <= set(dict(table.about))
    assert (np.diff(table.input_tokens) >= 0).all()
    assert (np.diff(table.output_tokens, axis=1) >= 0).all()
    assert table.output_tokens.min() >= 1


@pytest.mark.skipif(not SHARED.is_dir(), reason="the raw traces are not here")
def test_shipped_tables_are_what_the_build_command_makes(tmp_path):
    written = build_tables(SHARED, tmp_path)
    assert {p.name for p in written} == {p.name for p in DATA.glob("*.csv")}
    for path in written:
        assert path.read_bytes() == (DATA / path.name).read_bytes(), path.name


def test_a_missing_raw_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"azure_conv_2023.csv.gz is missing"):
        build_tables(tmp_path, tmp_path / "out")


def test_lengths_are_clipped():
    x, y = draws("reasoning", max_input_tokens=1000, max_output_tokens=2000)
    assert (x.min(), x.max()) == (4, 1000)
    assert y.max() == 2000
    assert (y == 2000).mean() == pytest.approx((draws("reasoning")[1] >= 2000).mean(), abs=0.001)


def test_the_first_lengths_do_not_depend_on_how_many_follow():
    few, many = draws("sharegpt", 10), draws("sharegpt", 1000)
    assert np.array_equal(few[0], many[0][:10])
    assert np.array_equal(few[1], many[1][:10])


def test_fixed_and_lognormal():
    arrivals = Arrivals(np.zeros(N, dtype=np.int64))
    fixed = FixedLengths(input_tokens=700, output_tokens=90, max_output_tokens=64)
    x, y = draw_lengths(fixed, arrivals, np.random.default_rng(0))
    assert (x == 700).all()
    assert (y == 64).all()
    config = LognormalLengths(
        input_mean_tokens=1000, output_mean_tokens=300, input_sigma=0.7, log_correlation=0.6
    )
    x, y = draw_lengths(config, arrivals, np.random.default_rng(0))
    assert x.mean() == pytest.approx(1000, rel=0.01)
    assert y.mean() == pytest.approx(300, rel=0.01)
    assert np.corrcoef(np.log(x), np.log(y))[0, 1] == pytest.approx(0.6, abs=0.01)


def predicted(kind: str, config, n: int = N, **keys):
    arrivals = Arrivals(np.zeros(n, dtype=np.int64))
    x, y = draw_lengths(config, arrivals, np.random.default_rng(3))
    predictor = PredictorConfig(kind=kind, **keys)
    return x, y, predict_outputs(predictor, config, arrivals, x, y, np.random.default_rng(4))


@pytest.mark.parametrize("name", ["long-output", "azure-conv", "m-small", "reasoning"])
def test_conditional_mean_is_a_calibrated_function_of_the_input(name):
    x, y, p = predicted("conditional_mean", TableLengths(table=name))
    assert p.mean() == pytest.approx(y.mean(), rel=0.02)
    order = np.lexsort((p, x))
    same = np.diff(x[order]) == 0
    assert (np.diff(p[order])[same] == 0).all(), "two predictions for one input"
    # In each tenth of the predictions the outputs have the predicted mean.
    for part in np.array_split(np.argsort(p, kind="stable"), 10):
        assert y[part].mean() == pytest.approx(p[part].mean(), rel=0.1, abs=0.7)


def test_conditional_mean_helps_where_output_follows_input():
    _, y, p = predicted("conditional_mean", TableLengths(table="long-output"))
    assert ((y - p) ** 2).mean() < 0.6 * y.var()


def test_conditional_mean_of_clipped_lognormal_and_fixed():
    _, y, p = predicted("conditional_mean", TableLengths(table="reasoning", max_output_tokens=500))
    assert p.max() <= 500
    assert p.mean() == pytest.approx(y.mean(), rel=0.02)
    x, y, p = predicted("conditional_mean", LognormalLengths(log_correlation=0.8))
    assert p.mean() == pytest.approx(y.mean(), rel=0.02)
    assert (np.diff(p[np.argsort(x, kind="stable")]) >= 0).all()
    assert (predicted("conditional_mean", FixedLengths(output_tokens=55))[2] == 55).all()


def test_noisy_and_oracle():
    _, y, p = predicted("oracle", TableLengths(table="sharegpt"))
    assert np.array_equal(y, p)
    _, y, p = predicted("noisy", TableLengths(table="sharegpt"), sigma=0.5)
    ratio = np.log(p[y > 100] / y[y > 100])
    assert ratio.std() == pytest.approx(0.5, rel=0.02)
    assert p.mean() == pytest.approx(y.mean(), rel=0.01)
    _, y, p = predicted("noisy", TableLengths(table="sharegpt"), sigma=0.0)
    assert np.array_equal(y, p)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 5000), st.integers(1, 5000)), min_size=64, max_size=300),
    st.integers(0, 2**32),
)
def test_a_table_of_any_pairs_samples_within_their_range(pairs, seed):
    x, y = (np.array(side) for side in zip(*pairs, strict=True))
    table = LengthTable.from_pairs(x, y)
    inputs, outputs = table.sample(500, np.random.default_rng(seed))
    assert x.min() <= inputs.min()
    assert inputs.max() <= x.max()
    assert y.min() <= outputs.min()
    assert outputs.max() <= y.max()
    means = table.mean_output_given_input(np.arange(0, 5002))
    assert y.min() <= means.min() + 1e-9
    assert means.max() <= y.max() + 1e-9


@pytest.mark.parametrize("levels", [INPUT_LEVELS, OUTPUT_LEVELS, np.array([0, 0.5, 0.500001, 1.0])])
def test_places_are_those_of_a_binary_search(levels):
    near = np.concatenate([levels, np.nextafter(levels, 0), np.nextafter(levels, 1)])
    u = np.concatenate([np.random.default_rng(0).random(50_000), near[(near >= 0) & (near < 1)]])
    assert np.array_equal(places_of(u, levels), np.searchsorted(levels, u, side="right") - 1)


@pytest.mark.parametrize("name", names("lengths"))
def test_means_looked_up_are_those_computed(name):
    table = load_clipped(name, 700)
    assert table.output_tokens.max() <= 700
    inputs = round_tokens(table.sample(2_000, np.random.default_rng(0))[0], 10**6)
    inputs = np.append(inputs, round_tokens(table.input_tokens[[0, -1]], 10**6))
    assert np.array_equal(table.mean_outputs(inputs), table.mean_output_given_input(inputs))


def test_too_few_pairs():
    with pytest.raises(ValueError, match="at least 64 pairs, got 3"):
        LengthTable.from_pairs(np.arange(1, 4), np.arange(1, 4))
