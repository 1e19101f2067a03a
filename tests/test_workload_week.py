"""Hourly rates, requests in chunks, regions by name, and SageServe's week."""

from __future__ import annotations

import tracemalloc
from dataclasses import fields

import numpy as np
import pytest
from pydantic import ValidationError

from baselines.tuning.episodes import tuning_seeds
from llmscale_env.control.reward import draw_requests, even_seeds
from llmscale_env.scenarios.load import ScenarioError, load_scenario
from llmscale_env.workload import (
    DEFAULT_CLASSES,
    PS_PER_S,
    RequestTable,
    StreamConfig,
    WorkloadConfig,
    generate_requests,
    request_chunks,
)
from llmscale_env.workload.arrivals import generate_arrivals
from llmscale_env.workload.config import HourlyArrivals, LoadBurst
from llmscale_env.workload.generate import day_drawn
from llmscale_env.workload.hourly import expected_rates, hourly_rate, minute_rates
from llmscale_env.workload.requests import WEEK_S
from llmscale_env.workload.tables import load_rates
from llmscale_env.workload.week import (
    WEEK_LLMS,
    WEEK_REGIONS,
    sageserve_week,
    week_classes,
)
from tests.refusals import refuses
from tests.small_world import SMALL_WORLD

DAY_S = 86_400.0
NO_COLUMNS = ("salt", "history", "past", "clock_s", "prefixes")
COLUMNS = [
    f.name
    for f in fields(RequestTable)
    if not f.name.endswith("names") and f.name not in NO_COLUMNS
]


def arguments(workload, horizon_s, seed=0):
    return {
        "classes": week_classes(workload),
        "llms": WEEK_LLMS,
        "regions": WEEK_REGIONS,
        "horizon_s": horizon_s,
        "rng": np.random.default_rng(seed),
    }


def draw(workload, horizon_s, seed=0):
    return generate_requests(workload, **arguments(workload, horizon_s, seed))


def assert_same(one, other):
    assert one.salt == other.salt
    for name in COLUMNS:
        left, right = getattr(one, name), getattr(other, name)
        assert left.dtype == right.dtype
        assert np.array_equal(left, right), name


def joined(chunks):
    columns = {
        name: np.concatenate([getattr(c.requests, name) for c in chunks]) for name in COLUMNS
    }
    one = chunks[0].requests
    return RequestTable(
        **columns,
        llm_names=one.llm_names,
        class_names=one.class_names,
        region_names=one.region_names,
        salt=one.salt,
    )


# ---------------------------------------------------------------- rates


def test_expected_rates_by_hand():
    rpm = load_rates("sageserve-week").rpm["iw-a"]
    config = HourlyArrivals(table="sageserve-week", series="iw-a")
    rates = expected_rates(config, None, 0.0, 2)
    assert len(rates) == 120
    # Minute 30 begins in the middle of hour 0; its own middle is half a minute later.
    assert rates[30] == pytest.approx((rpm[0] + (0.5 / 60) * (rpm[1] - rpm[0])) / 60)
    assert rates[60] == pytest.approx((rpm[0] + (30.5 / 60) * (rpm[1] - rpm[0])) / 60)
    # The first half hour comes from the last hour of the week.
    assert rates[0] == pytest.approx((rpm[-1] + (30.5 / 60) * (rpm[0] - rpm[-1])) / 60)
    week = expected_rates(config, 3.0, 0.0, 168)
    assert week.mean() == pytest.approx(3.0)
    assert hourly_rate(config) == pytest.approx(rpm.mean() / 60)
    later = expected_rates(config, 3.0, DAY_S, 2)
    assert np.array_equal(later, week[1440:1560])


def test_noise_has_mean_one_and_the_stated_spread():
    plain = HourlyArrivals(table="sageserve-week", series="flat")
    base = minute_rates(plain, 2.0, 3000, np.random.default_rng(0))
    assert set(base) == {2.0}

    def factors(**keys):
        config = plain.model_copy(update=keys)
        return minute_rates(config, 1.0, 3000, np.random.default_rng(0))

    noisy = factors(noise_cv=0.3)
    assert noisy.mean() == pytest.approx(1.0, abs=0.005)
    assert noisy.std() == pytest.approx(0.3, rel=0.02)
    spiky = factors(spike_share=0.01)
    assert spiky.mean() == pytest.approx(1.0, abs=0.01)
    assert (spiky >= 2).mean() == pytest.approx(0.01, rel=0.1)
    assert spiky.max() <= 5
    on_off = factors(on_share=0.25, mean_on_s=600.0)
    assert set(np.unique(on_off)) == {0.0, 4.0}
    assert (on_off > 0).mean() == pytest.approx(0.25, abs=0.02)
    switches = np.count_nonzero(np.diff(on_off > 0)) / 2
    assert len(on_off) * 0.25 / switches == pytest.approx(10, rel=0.1)


@pytest.mark.parametrize(
    "bad",
    [
        {"noise_cv": 0.001},
        {"spike_factors": (5.0, 2.0)},
        {"spike_share": 0.19, "spike_factors": (5.0, 7.0)},
        {"on_share": 0.0},
    ],
)
def test_what_cannot_be_is_refused(bad):
    with pytest.raises(ValidationError):
        HourlyArrivals(table="sageserve-week", series="iw-a", **bad)


def test_unknown_tables_and_series_are_named():
    for keys, word in (
        ({"table": "nobody", "series": "iw-a"}, "nobody"),
        ({"table": "sageserve-week", "series": "iw-z"}, "iw-z"),
    ):
        with pytest.raises(ValueError, match=word):
            generate_arrivals(HourlyArrivals(**keys), None, 60.0, np.random.default_rng(0))


def test_arrivals_of_a_stream_alone_follow_the_table():
    config = HourlyArrivals(table="sageserve-week", series="iw-c", start_s=2 * DAY_S)
    times = generate_arrivals(config, None, DAY_S, np.random.default_rng(3), rate_scale=2.0)
    per_hour = np.bincount(times.arrival_ps // (3600 * PS_PER_S), minlength=24)
    rpm = load_rates("sageserve-week").rpm["iw-c"][48:72]
    assert per_hour.sum() == pytest.approx(rpm.sum() * 120, rel=0.02)
    assert np.corrcoef(per_hour, rpm)[0, 1] > 0.99


# ---------------------------------------------------------------- chunks


@pytest.mark.parametrize("chunk_s", [777.7, 3600.0, 10_000.0, 1e6])
def test_chunks_are_the_whole_draw(chunk_s):
    burst = LoadBurst(at_s=3000.0, duration_s=1234.5, factor=8.0)
    week = sageserve_week(
        rate_scale=0.05,
        start_s=1.5 * DAY_S,
        bursts=[burst],
        fast_share=0.4,
        opportunistic_share=0.5,
    )
    data = week.model_dump()
    data["streams"] += (
        {"name": "steady", "llm": WEEK_LLMS[0], "rate_per_s": 0.2, "region": "us-east"},
        {"name": "gamma", "llm": WEEK_LLMS[1], "rate_per_s": 0.1, "arrivals": "gamma"},
    )
    data["batch_queues"] = [{"name": "q", "llm": WEEK_LLMS[2], "n_requests": 500, "at_s": 3600.0}]
    workload = WorkloadConfig.model_validate(data)
    keys = {
        "classes": (*week_classes(week), *DEFAULT_CLASSES),
        "llms": WEEK_LLMS,
        "horizon_s": 20_000.0,
    }
    whole = generate_requests(workload, rng=np.random.default_rng(7), **keys)
    chunks = list(request_chunks(workload, rng=np.random.default_rng(7), chunk_s=chunk_s, **keys))
    assert_same(joined(chunks), whole)
    assert [c.first_id for c in chunks] == [
        int(np.searchsorted(whole.arrival_ps, round(c.from_s * PS_PER_S))) for c in chunks
    ]
    assert chunks[0].from_s == 0
    assert chunks[-1].to_s == 20_000
    for chunk in chunks:
        if len(chunk.requests):
            assert chunk.from_s <= chunk.requests.arrival_s[0]
            assert chunk.requests.arrival_s[-1] < chunk.to_s
    assert {"us-west", "us-east"} <= set(whole.region_names)


def test_a_longer_week_begins_like_a_shorter_one():
    week = sageserve_week(rate_scale=0.02)
    short, long = draw(week, 50_000.0), draw(week, 90_000.0)
    n = len(short)
    for name in COLUMNS:
        if name != "failures":
            assert np.array_equal(getattr(short, name), getattr(long, name)[:n]), name


def test_one_seed_is_one_week():
    week = sageserve_week(rate_scale=0.01)
    assert_same(draw(week, DAY_S), draw(week, DAY_S))
    assert len(draw(week, DAY_S, seed=1)) != len(draw(week, DAY_S))


def test_chunks_take_little_memory():
    week = sageserve_week(rate_scale=0.5)
    tracemalloc.start()
    n = sum(
        len(chunk.requests)
        for chunk in request_chunks(week, **arguments(week, 3 * DAY_S), chunk_s=1800.0)
    )
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    bytes_per_request = 8 + 3 * 2 + 3 * 4
    assert n > 1_500_000
    assert peak < n * bytes_per_request / 3


# ---------------------------------------------------------------- the week


@pytest.fixture(scope="module")
def some_week():
    week = sageserve_week(rate_scale=0.05)
    return draw(week, WEEK_S)


def test_shape_of_the_week(some_week):
    """Published: docstring of the mix; the tolerances are those of a 20th of the requests."""
    table = some_week
    assert len(table) / 0.05 > 1e7
    iw = table.slo_class == 0
    assert table.class_names == ("interactive", "non-interactive")
    assert iw.mean() == pytest.approx(0.82, abs=0.01)
    day = (table.arrival_s // DAY_S).astype(int)
    per_day = np.bincount(day[iw], minlength=7)
    assert per_day[5:].mean() / per_day[:5].mean() == pytest.approx(0.23, abs=0.04)
    background = np.bincount(day[~iw], minlength=7)
    assert background[5:].mean() / background[:5].mean() == pytest.approx(0.67, abs=0.08)
    both = table.input_tokens + table.output_tokens.astype(np.int64)
    assert both[iw].mean() == pytest.approx(6600, rel=0.06)
    assert both[~iw].mean() == pytest.approx(4450, rel=0.03)
    assert table.output_tokens.mean() == pytest.approx(222, rel=0.02)
    assert both[~iw].sum() / both.sum() == pytest.approx(0.13, abs=0.01)
    means = [table.input_tokens[iw & (table.llm == k)].mean() for k in range(4)]
    assert means == pytest.approx([7800, 8400, 6300, 4600], rel=0.03)
    bloom = table.input_tokens[table.llm == 0]
    assert bloom.max() == 49_424


def test_home_regions(some_week):
    assert some_week.region_names == WEEK_REGIONS
    for llm, home in ((0, 2), (1, 0), (2, 1), (3, 2)):
        shares = np.bincount(some_week.region[some_week.llm == llm], minlength=3)
        assert shares[home] / shares.sum() == pytest.approx(0.5, abs=0.01)
        assert shares.min() / shares.sum() == pytest.approx(0.25, abs=0.01)


def test_bursts_change_their_hours_only():
    calm = sageserve_week(rate_scale=0.2)
    burst = LoadBurst(at_s=5400.0, duration_s=600.0, factor=8.0)
    wild = sageserve_week(rate_scale=0.2, bursts=[burst])
    one, other = draw(calm, 14_400.0), draw(wild, 14_400.0)

    def within(table, a, b, slo_class=0):
        return int(
            ((table.arrival_s >= a) & (table.arrival_s < b) & (table.slo_class == slo_class)).sum()
        )

    assert within(other, 5400, 6000) == pytest.approx(8 * within(one, 5400, 6000), rel=0.15)
    assert within(other, 5400, 6000, 1) == within(one, 5400, 6000, 1)
    for a, b in ((0, 3600), (7200, 14_400)):
        rows = [(t.arrival_s >= a) & (t.arrival_s < b) for t in (one, other)]
        for name in ("arrival_ps", "llm", "input_tokens", "region"):
            assert np.array_equal(getattr(one, name)[rows[0]], getattr(other, name)[rows[1]])


def test_tiers_and_readings():
    tiered = draw(sageserve_week(rate_scale=0.1, fast_share=0.3, opportunistic_share=0.5), DAY_S)
    assert tiered.class_names == (
        "interactive-fast",
        "interactive-normal",
        "non-interactive",
        "opportunistic",
    )
    counts = np.bincount(tiered.slo_class, minlength=4)
    assert counts[0] / counts[:2].sum() == pytest.approx(0.3, abs=0.02)
    assert counts[3] / counts[2] == pytest.approx(0.5, abs=0.15)  # both have bursts of their own
    plain = draw(sageserve_week(rate_scale=0.1), DAY_S)
    swapped = sageserve_week(rate_scale=0.1, swap_b_and_d=True)
    assert len({stream.name for stream in swapped.streams}) == 8
    other = draw(swapped, DAY_S)
    # D is the busiest on the first day.
    busiest = [int(np.bincount(t.llm[t.slo_class == 0]).argmax()) for t in (plain, other)]
    assert [WEEK_LLMS[k] for k in busiest] == ["llama-3.2-3b", "bloom-176b"]
    assert other.input_tokens[other.llm == 0].max() <= 49_424
    late = {
        flat: draw(sageserve_week(rate_scale=0.1, start_s=3 * DAY_S, stationary_d=flat), 4 * 3600.0)
        for flat in (False, True)
    }
    assert [int((t.llm == 3).sum() > 2000) for t in late.values()] == [0, 1]
    assert sageserve_week(fast_share=1.0).streams[0].slo_class == "interactive-fast"
    refuses("fast_share", sageserve_week, fast_share=1.5)


# ---------------------------------------------------------------- regions by name


def test_regions_are_names():
    east = StreamConfig(name="a", llm="llama-2-7b", rate_per_s=5.0, region="east")
    both = StreamConfig(
        name="b", llm="llama-2-7b", rate_per_s=5.0, region={"west": 3.0, "east": 1.0}
    )
    none = StreamConfig(name="c", llm="llama-2-7b", rate_per_s=5.0)
    workload = WorkloadConfig(streams=(east, both, none))
    assert workload.regions == ("east", "west")
    keys = {"classes": DEFAULT_CLASSES, "llms": ("llama-2-7b",), "horizon_s": 1000.0}
    own = generate_requests(workload, rng=np.random.default_rng(0), **keys)
    assert own.region_names == ("east", "west")
    assert (own.region == 1).sum() == pytest.approx(3750, rel=0.05)
    told = generate_requests(
        workload, rng=np.random.default_rng(0), regions=("north", "west", "east"), **keys
    )
    assert (told.region == 0).sum() == pytest.approx(5000, rel=0.05)
    assert np.array_equal(told.region == 1, own.region == 1)
    assert np.array_equal(told.arrival_ps, own.arrival_ps)
    with pytest.raises(ValueError, match=r"streams\[0\].region = 'east'"):
        generate_requests(workload, rng=np.random.default_rng(0), regions=("west",), **keys)
    refuses(r"region\[0\] = 1", RequestTable.build, [0.0], [1], [1], region=1)


def test_a_scenario_says_regions_by_name():
    from llmscale_env.control.reward import draw_requests

    overrides = {
        "regions": ("west", "east"),
        "workload.streams.0.region": {"west": 1.0, "east": 1.0},
        "workload.streams.1.region": "east",
        "horizon_s": 120.0,
    }
    scenario = load_scenario(SMALL_WORLD, **overrides)
    table = draw_requests(scenario, np.random.default_rng(0))
    assert table.region_names == ("west", "east")
    assert set(table.region) == {0, 1}
    alone = draw_requests(load_scenario(SMALL_WORLD, horizon_s=120.0), np.random.default_rng(0))
    assert alone.region_names == ("region",)
    assert np.array_equal(alone.arrival_ps, table.arrival_ps)
    assert np.array_equal(alone.output_tokens, table.output_tokens)
    with pytest.raises(ScenarioError, match="east"):
        load_scenario(SMALL_WORLD, **{"workload.streams.1.region": "east"})
    refuses("unique", load_scenario, SMALL_WORLD, regions=("a", "a"), error=ScenarioError)


# ---- which day a seed draws ----


@pytest.mark.parametrize(
    "name, workload, days",
    [("mixed-slo", "mixed-slo/test", 4), ("multi-region", None, 7)],
)
def test_even_seeds_draw_every_day_equally_often(name, workload, days):
    changes = {} if workload is None else {"workload": workload}
    scenario = load_scenario(name, **changes)

    def drawn(n):
        seeds = even_seeds(scenario, 10_000, n)
        assert seeds == sorted(set(seeds))
        rngs = map(np.random.default_rng, seeds)
        found = [day_drawn(scenario.workload, scenario.horizon_s, rng) for rng in rngs]
        return np.unique_counts(found).counts.tolist()

    assert drawn(days) == [1] * days
    assert sorted(drawn(2 * days + 1)) == [2] * (days - 1) + [3]


def test_windows_that_begin_at_any_time_can_be_even_by_day_too():
    scenario = load_scenario("mixed-slo-hours", workload="mixed-slo/test-hours")
    seeds = even_seeds(scenario, 10_000, 9, any_time=True)
    light = load_scenario(
        "mixed-slo-hours", workload="mixed-slo/test-hours", **{"workload.rate_scale": 0.001}
    )
    # The clock counts from the day before, on which the history begins.
    clocks = [draw_requests(light, np.random.default_rng(seed)).clock_s for seed in seeds]
    assert len(set(clocks)) == 9
    found = [
        day_drawn(scenario.workload, scenario.horizon_s, np.random.default_rng(seed), any_time=True)
        for seed in seeds
    ]
    assert sorted(np.unique_counts(found).counts.tolist()) == [2, 2, 2, 3]
    assert set(found) == {10, 11, 12, 13}


@pytest.mark.parametrize("name, days", [("mixed-slo", 8), ("multi-region", 7)])
def test_a_search_meets_every_day_once_before_any_comes_again(name, days):
    scenario = load_scenario(name)
    seeds = tuning_seeds(scenario, 2 * days + 3)
    rngs = map(np.random.default_rng, seeds)
    found = [day_drawn(scenario.workload, scenario.horizon_s, rng) for rng in rngs]
    for k in range(len(seeds)):
        assert len(set(found[k - k % days : k + 1])) == k % days + 1
    assert len(set(seeds)) == len(seeds)
    assert min(seeds) >= 1000
    assert tuning_seeds(scenario, 3) == seeds[:3]
    assert tuning_seeds(load_scenario("placement"), 3) == [1000, 1001, 1002]


def test_the_day_drawn_is_the_day_of_the_requests():
    scenario = load_scenario("multi-region", **{"workload.rate_scale": 0.001})
    for seed in range(5):
        day = day_drawn(scenario.workload, scenario.horizon_s, np.random.default_rng(seed))
        table = draw_requests(scenario, np.random.default_rng(seed))
        # A day of history comes first.
        assert table.clock_s == (day + 1) % 7 * 86_400
    test = load_scenario("mixed-slo", workload="mixed-slo/test", **{"workload.rate_scale": 0.001})
    numbers = {
        day_drawn(test.workload, test.horizon_s, np.random.default_rng(seed)) for seed in range(30)
    }
    assert numbers == {10, 11, 12, 13}


def test_negative_counts_are_refused():
    scenario = load_scenario("mixed-slo")
    for first, n in ((0, -1), (-1, 3)):
        refuses("must not be negative", even_seeds, scenario, first, n)


def test_where_no_day_is_drawn_seeds_follow_each_other():
    assert even_seeds(load_scenario("mixed-slo-hours"), 7, 3) == [7, 8, 9]
    assert even_seeds(load_scenario("placement"), 7, 3) == [7, 8, 9]
