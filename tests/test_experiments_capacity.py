"""How many GPUs: the search, the interval, the windows, the command from end to end, and its slips."""

from __future__ import annotations

import csv
import re
import sys
from math import sqrt

import numpy as np
import pytest
from scipy.stats import t

from baselines.aladdin.fleet import history
from experiments.capacity import (
    Answer,
    Trials,
    Tried,
    _part,
    _plan,
    all_of,
    best,
    main,
    search,
    sentence,
)
from experiments.capacity_load import Stratum, plan_of, stream_of, window
from experiments.capacity_options import FEW_WINDOWS, MOST_WORK, ask
from experiments.capacity_search import (
    Share,
    best_bound,
    requests_needed,
    share_interval,
    together,
    windows_needed,
)
from experiments.capacity_serve import idle_in_time, run, scenario_of
from experiments.least import least

SLO = "slo=ttft:0.6,itl:0.03"


@pytest.mark.parametrize("answer", range(1, 22))
@pytest.mark.parametrize("start", [1, 2, 7, 20, 99])
def test_the_search_finds_the_least_number_and_asks_no_number_twice(answer, start):
    asked = []

    def enough(number):
        asked.append(number)
        return number >= answer

    found = least(enough, 20, start)
    assert found == (answer if answer <= 20 else None)
    assert len(asked) == len(set(asked))
    assert all(1 <= number <= 20 for number in asked)
    if found is not None and found > 1:
        assert found - 1 in asked


def test_the_interval_of_alike_windows_is_wilsons_with_students_quantile():
    # 4 windows of 100 with 90 each: no variance between them, so the design effect stays at 1.
    share = share_interval([90, 90, 90, 90], [100] * 4)
    q = t.ppf(0.95, 3)
    n, p = 400, 0.9
    middle = (p + q * q / (2 * n)) / (1 + q * q / n)
    half = q * sqrt(p * (1 - p) / n + q * q / (4 * n * n)) / (1 + q * q / n)
    assert (share.in_time, share.requests) == (360, 400)
    assert share.low == pytest.approx(middle - half)
    assert share.high == pytest.approx(middle + half)


def test_windows_that_differ_count_as_fewer_requests():
    # (80, 100) of 100: variance between = 2/1 * (10^2 + 10^2) / 200^2 = 0.01; of independent
    # requests 0.9 * 0.1 / 200 = 0.00045; so 200 requests count as 200 * 0.045 = 9.
    share = share_interval([80, 100], [100, 100])
    q, n, p = t.ppf(0.95, 1), 9.0, 0.9
    low = (p + q * q / (2 * n) - q * sqrt(p * (1 - p) / n + q * q / (4 * n * n))) / (1 + q * q / n)
    assert share.low == pytest.approx(low)
    assert share.low < share_interval([90, 90], [100, 100]).low


def test_all_in_time_is_no_certainty():
    # Wilson with p = 1: n / (n + q^2).
    share = share_interval([50, 50, 0], [50, 50, 0])
    assert share.low == pytest.approx(100 / (100 + t.ppf(0.95, 1) ** 2))
    assert share.high == 1.0
    assert np.isnan(share_interval([5], [10]).low)
    with pytest.raises(ValueError, match="no requests"):
        share_interval([0], [0])


@pytest.mark.parametrize("target", [0.5, 0.9, 0.99, 0.999])
@pytest.mark.parametrize("windows", [2, 10, 40])
def test_how_many_requests_it_takes_to_show_a_share(target, windows):
    # All of n in time shows n / (n + q^2).
    n = requests_needed(target, windows)
    q = t.ppf(0.95, windows - 1)
    assert n == pytest.approx(q * q * target / (1 - target), abs=1.001)
    assert best_bound(n, windows) >= target > best_bound(n - 1, windows)
    assert best_bound(100, 4) == share_interval([25] * 4, [25] * 4).low


def test_how_many_windows_it_takes_to_show_a_share():
    # 10 windows of 10 show 96.75 %; of these it takes q(w - 1)^2 * 99 / 10 = 28.2 with w = 29.
    assert windows_needed(0.99, [10] * 10, 1000) == 29
    assert 29 * 10 >= t.ppf(0.95, 28) ** 2 * 99 > 0.99 * 28 * 10
    # Every second one is empty: as many that are not, about.
    assert 56 <= windows_needed(0.99, [10, 0] * 5, 1000) <= 58
    # A trace that has room for fewer.
    assert windows_needed(0.99, [10] * 10, 28) is None
    assert windows_needed(0.99, [10] * 10, 10) is None


@pytest.mark.parametrize("burst, least_coverage", [(490, 0.94), (49, 0.88)])
def test_the_lower_bound_holds_about_as_often_as_it_says(burst, least_coverage):
    # Windows of beta-binomial requests around 98 %: the second lets rare windows miss much (3,000
    # draws: 96 % and 92 %, where a t interval of the windows' shares has 92 % and 87 %).
    rng = np.random.default_rng(3)
    held = simple = 0
    for _ in range(600):
        good = rng.binomial(200, rng.beta(burst, burst / 49, 12))
        held += share_interval(good, [200] * 12).low <= 0.98
        shares = good / 200
        half = t.ppf(0.95, 11) * shares.std(ddof=1) / sqrt(12)
        simple += shares.mean() - half <= 0.98
    assert held / 600 > least_coverage
    assert held > simple


def test_a_load_of_two_parts_has_the_means_of_their_bounds():
    sure, rest = share_interval([90, 80], [100, 100]), share_interval([50, 50], [50, 50])
    both = together([sure, rest], [200, 600])
    assert both.seen == pytest.approx(0.25 * 0.85 + 0.75)
    assert both.low == pytest.approx(0.25 * sure.low + 0.75 * rest.low)
    assert both.high == pytest.approx(0.25 * sure.high + 0.75)
    assert (both.in_time, both.requests) == (270, 300)
    assert together([sure], [200]) is sure


@pytest.fixture
def trace(tmp_path):
    """200 s of four requests a second; row k has 100 + k input tokens."""
    path = tmp_path / "mine.csv"
    rows = [f"{k / 4},{100 + k},20\n" for k in range(800)]
    path.write_text("arrival_time_s,input_tokens,output_tokens\n" + "".join(rows))
    return path


@pytest.fixture
def bursty(tmp_path):
    """600 s of two requests a second, and three bursts of 20 s with 20 times that."""
    path = tmp_path / "bursty.csv"
    burst = {140, 300, 560}
    times = [
        start + k / (40 if start in burst else 2)
        for start in range(0, 600, 20)
        for k in range(800 if start in burst else 40)
    ]
    rows = [f"{at:.3f},{200 + k % 300},100\n" for k, at in enumerate(times)]
    path.write_text("arrival_time_s,input_tokens,output_tokens\n" + "".join(rows))
    return path


def of_trace(bursty, tmp_path, *words):
    common = [SLO, "window_s=20", "warm_up_s=5", "policy=jsq", "tp=1", f"out={tmp_path / 'out'}"]
    return [*common, f"trace={bursty}", *words]


@pytest.mark.slow
def test_a_small_trace_is_simulated_as_a_whole_and_every_seed_has_the_same_answer(
    bursty, tmp_path, capsys
):
    told = []
    for seed in (1, 2, 3):
        assert main(of_trace(bursty, tmp_path, f"seed={seed}")) == 0
        told.append(capsys.readouterr().out.splitlines())
    assert told[0][0] == "llama-2-13b on a100-80gb, tensor parallelism of 1"
    assert told[0][1] == "simulated: all 3,480 requests of bursty.csv, in 30 windows of 20 s"
    (answer,) = {line for lines in told for line in lines if line.startswith("recommended")}
    assert "of 3,480 were" in answer
    assert not any(line.startswith("not sure") for lines in told for line in lines)


def test_the_busiest_windows_are_simulated_whatever_the_seed(bursty, tmp_path):
    drawn = set()
    for seed in range(5):
        case = ask(of_trace(bursty, tmp_path, "windows=6", f"seed={seed}")).case
        plan = plan_of(stream_of(case), case)
        assert sorted(plan.parts[: plan.busiest].tolist()) == [7, 15, 28]
        assert len(set(plan.parts.tolist())) == 6
        # The parts are a little shorter than 20 s, so bursts reach into their neighbours by some requests.
        assert plan.coverage == pytest.approx((3 * 800 + 3 * 40) / 3480, abs=0.02)
        assert [whole for _, whole, _ in plan.strata] == pytest.approx([2400, 1080], abs=60)
        drawn.add(tuple(plan.parts[plan.busiest :].tolist()))
    assert len(drawn) > 1


def test_what_was_not_simulated_is_told(bursty, tmp_path, capsys):
    assert main(of_trace(bursty, tmp_path, "windows=8", "attainment=0.9")) == 0
    out = capsys.readouterr().out
    simulated, others = re.search(
        r"simulated: (\d+) % of the 3,480 requests of bursty.csv, in 8 windows of 20 s of 30: "
        r"the busiest 4, and 4 drawn with seed 0\n[^$]*not sure: (\d+) % of the requests were not",
        out,
    ).groups()
    assert int(simulated) + int(others) == 100
    assert "windows=30 simulates all of them" in out


def test_whether_all_of_a_trace_is_simulated_depends_on_the_work(bursty, tmp_path):
    def windows(*words):
        return ask(of_trace(bursty, tmp_path, *words)).case["windows"]

    assert windows() == 30
    assert windows("rate_per_s=29") == 10  # 120 s: windows are shorter
    assert windows("windows=12") == 12
    assert ask([SLO, "rate_per_s=3", f"out={tmp_path}"]).case["windows"] == FEW_WINDOWS
    many = bursty.with_name("many.csv")
    head, *rows = bursty.read_text().splitlines(keepends=True)
    many.write_text(
        head + "".join(sorted(rows * (MOST_WORK // 3480 + 1), key=lambda r: float(r.split(",")[0])))
    )
    assert ask([*of_trace(many, tmp_path)]).case["windows"] == FEW_WINDOWS


def small(tmp_path, *words):
    given = {word.partition("=")[0] for word in words}
    common = [SLO, "windows=4", "window_s=10", "warm_up_s=5", f"out={tmp_path / 'out'}"]
    return [*(word for word in common if word.partition("=")[0] not in given), *words]


def test_a_window_has_load_around_it_and_counts_its_own(trace, tmp_path):
    case = ask(small(tmp_path, f"trace={trace}")).case
    found = window(scenario_of(case, 1, 1), {**case, "window": 1})
    arrival_s = found.requests.arrival_s
    assert found.counted.sum() == 40
    assert ((arrival_s >= 5 - 1e-9) & (arrival_s < 15)).tolist() == found.counted.tolist()
    assert len(arrival_s) == 80
    assert np.diff(found.requests.input_tokens).tolist() == [1] * 79
    # The busiest come first; here prompts grow.
    assert found.requests.input_tokens[0] == 100 + 4 * 175
    # At twice the rate the same trace is half as long.
    case = ask(small(tmp_path, f"trace={trace}", "rate_per_s=8")).case
    found = window(scenario_of(case, 1, 1), {**case, "window": 1})
    assert found.counted.sum() == 80


def test_every_number_of_workers_and_policy_meets_the_same_window(tmp_path):
    case = ask(small(tmp_path, "rate_per_s=5")).case
    one = window(scenario_of(case, 1, 1), {**case, "window": 2}).requests
    other = window(scenario_of(case, 2, 7), {**case, "window": 2}).requests
    another = window(scenario_of(case, 1, 1), {**case, "window": 3}).requests
    assert one.arrival_ps.tolist() == other.arrival_ps.tolist()
    assert one.output_tokens.tolist() == other.output_tokens.tolist()
    assert one.arrival_ps.tolist() != another.arrival_ps.tolist()


def test_the_history_of_a_trace_is_its_rows(trace, tmp_path):
    case = ask(small(tmp_path, f"trace={trace}")).case
    inputs, outputs = history(scenario_of(case, 1, 1))
    assert set(outputs.tolist()) == {20}
    assert inputs.min() >= 100
    assert inputs.max() <= 899
    assert len(inputs) == len(set(inputs.tolist())) == 800  # none twice


def test_predictions_in_a_window_of_a_trace_do_not_hold_the_truth(tmp_path):
    rng = np.random.default_rng(4)
    outputs = rng.integers(1, 1000, 300)
    path = tmp_path / "mine.csv"
    rows = [f"{k / 4},{100 + k},{y}\n" for k, y in enumerate(outputs)]
    path.write_text("arrival_time_s,input_tokens,output_tokens\n" + "".join(rows))
    case = ask(small(tmp_path, f"trace={path}", "windows=2", "window_s=60")).case
    loads = [window(scenario_of(case, 1, 1), {**case, "window": k}).requests for k in range(2)]
    truth = np.concatenate([load.output_tokens for load in loads])
    told = np.concatenate([load.predicted_output_tokens for load in loads])
    assert len(truth) > 250
    assert abs(np.corrcoef(truth, told)[0, 1]) < 3 / np.sqrt(len(truth))


def test_an_idle_worker_serves_as_the_simulation_does(trace, tmp_path):
    # Prompts of 100 to 899 tokens; one at a time on eight workers is as good as idle.
    words = small(tmp_path, f"trace={trace}", "rate_per_s=1")
    words[0] = "slo=ttft:0.06,itl:0.03"
    case = ask(words).case
    loads = [window(scenario_of(case, 1, 1), {**case, "window": k}) for k in range(4)]
    idle = idle_in_time(scenario_of(case, 1, 1), loads)
    rows = [
        run({**case, "window": k, "policy": "jsq", "parameters": {}, "tp": 1, "workers": 8})[0]
        for k in range(4)
    ]
    assert 0.05 < sum(idle) / sum(r["requests"] for r in rows) < 0.95
    assert [r["in_time"] for r in rows] == idle


def made_up(tmp_path, share, *words):
    """Trials of a cluster whose attainment is a function of the workers, and what it was asked."""
    asked = []

    def serve(case):
        asked.append((case["workers"], case["window"]))
        return [{"requests": 1000, "in_time": round(1000 * share(case["workers"]))}]

    trials = Trials(ask(small(tmp_path, "rate_per_s=5", *words)), serve)
    trials.sizes([1000] * 4)
    return trials, asked


@pytest.mark.slow
def test_a_search_on_a_made_up_cluster(tmp_path):
    trials, asked = made_up(tmp_path, lambda n: min(1.0, 0.5 + 0.1 * n))
    answer = search(trials, ("jsq", "jsq", {}), 2, 9)
    assert answer.found.workers == 5
    assert answer.found.gpus == 10
    assert answer.fewer.workers == 4
    assert answer.fewer.share.seen == 0.9
    assert answer.fewer.windows == 4
    assert answer.note == ""
    assert len(asked) == len(set(asked))
    with (tmp_path / "out" / "capacity.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["workers"]) for row in rows] == sorted({n for n, _ in asked})
    # What was tried is on disk: the same again asks nothing.
    again, asked = made_up(tmp_path, lambda n: 0.0)
    assert search(again, ("jsq", "jsq", {}), 2, 9) == answer
    assert asked == []


def test_what_cannot_be_enough_is_given_up_after_the_first_window(tmp_path):
    trials, asked = made_up(tmp_path, lambda n: 0.5)
    tried = trials.attempt(("jsq", "jsq", {}), 1, 3)
    assert (tried.windows, tried.enough, asked) == (1, False, [(3, 0)])
    answer = search(trials, ("jsq", "jsq", {}), 1, 1)
    assert answer.found is None
    assert answer.note.startswith("64 GPUs are not enough: 50.00 %")


def test_enough_means_the_lower_bound_reaches_the_target(tmp_path):
    # 99.1 % of 4,000 is above 99 %, but its lower bound is not.
    trials, _ = made_up(tmp_path, lambda n: 0.991)
    assert not trials.attempt(("jsq", "jsq", {}), 1, 3).enough
    assert trials.all["jsq", 1, 3].windows == 4
    answer = search(
        made_up(tmp_path, lambda n: 0.991 if n < 4 else 1.0, "seed=1")[0], ("jsq", "jsq", {}), 1, 1
    )
    assert answer.found.workers == 4
    assert answer.note == "one fewer may do: more windows"


def test_the_recommendation_has_the_fewest_gpus_and_says_how_sure_it_is():
    def tried(policy, tp, workers, low):
        return Tried(policy, tp, workers, 4, Share(995, 1000, low, 0.999), True)

    few = Tried("jsq", 2, 2, 4, Share(900, 1000, 0.88, 0.92), False)
    found = [
        Answer("aladdin", 1, tried("aladdin", 1, 7, 0.999)),
        Answer("aladdin", 2, tried("aladdin", 2, 3, 0.991)),
        Answer("jsq", 2, tried("jsq", 2, 3, 0.992), few),
        Answer("jsq", 8, None, note="no"),
    ]
    assert best(found) is found[2]
    text = sentence(found[2], 0.99)
    assert "6 GPUs, 3 workers of 2, jsq: at least 99.20 %" in text
    assert "one worker fewer at most 92.00 %" in text
    assert best(found[3:]) is None
    assert "no configuration" in sentence(None, 0.99)


@pytest.mark.slow
def test_the_command_from_a_trace_to_an_answer(trace, tmp_path, capsys, monkeypatch):
    words = ["policy=jsq,machine-wide", "tp=1,2", "attainment=0.9", "windows=20"]
    words = small(tmp_path, f"trace={trace}", *words, "gpus_per_host=2", "max_gpus=8")
    assert main(words) == 0
    first = capsys.readouterr().out
    assert "recommended: 2 GPUs, " in first
    assert "machine-wide  2 " in first
    assert (tmp_path / "out" / "capacity.png").stat().st_size > 5000
    before = (tmp_path / "out" / "capacity.csv").read_text()
    assert main(words) == 0
    assert capsys.readouterr().out == first
    assert (tmp_path / "out" / "capacity.csv").read_text() == before
    # Without matplotlib the answer is the same, and the picture alone is missing.
    (tmp_path / "out" / "capacity.png").unlink()
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(words) == 0
    told = capsys.readouterr()
    assert told.out == first.partition("drawn: ")[0]
    assert told.err == "no capacity.png: it needs matplotlib (pip install 'llmscale[plots]')\n"
    assert not (tmp_path / "out" / "capacity.png").exists()


def test_a_trace_with_hashes_of_blocks_of_another_size(tmp_path, capsys):
    path = tmp_path / "dynamo.jsonl"
    row = '{{"timestamp": {}, "input_length": 150, "output_length": 20, "hash_ids": [0, 1, {}]}}\n'
    path.write_text("".join(row.format(250 * k, k + 2) for k in range(800)))
    words = small(tmp_path, f"trace={path}", "policy=jsq", "tp=1", "attainment=0.9", "windows=20")
    assert main(words) == 2
    assert "512 tokens (hash_block_tokens)" in capsys.readouterr().err
    case = ask([*words, "hash_block_tokens=64"]).case
    found = window(scenario_of(case, 1, 1), {**case, "window": 1})
    assert found.requests.input_tokens.tolist() == [150] * len(found.requests)


def test_degrees_that_cannot_are_named(tmp_path, capsys):
    words = ["slo=ttft:0.6,itl:0.03", "windows=2", "window_s=5", "warm_up_s=1", "rate_per_s=4"]
    words += ["llm=llama-2-70b", "tp=1,2", "policy=jsq", "attainment=0.4", f"out={tmp_path}"]
    assert main(words) == 1
    out = capsys.readouterr().out
    assert "cannot hold the LLM" in out
    assert "even an idle worker keeps the SLOs of only" in out
    assert "no configuration" in out


@pytest.mark.slow
def test_a_load_too_small_to_show_the_target_is_told_before_anything_is_served(
    trace, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr("experiments.capacity_serve.run_episode", None)
    words = ["policy=jsq", "tp=1", "max_gpus=4", "window_s=5"]
    drawn, part = [*words, "rate_per_s=4", "windows=3"], [*words, f"trace={trace}", "windows=10"]
    assert main(small(tmp_path, *drawn)) == 2
    told = capsys.readouterr().err
    # n / (n + q^2) with q = t.ppf(0.95, 2) = 2.92: 845 requests for 99 %.
    (n,) = map(
        int, re.findall(r"cannot be shown with (\d+) requests in 3 windows: all in time", told)
    )
    bound = np.floor(1e4 * n / (n + t.ppf(0.95, 2) ** 2)) / 100
    assert f"would show {bound:.2f} % (95 % confidence); it takes 845 requests in 3 windows" in told
    (windows,) = map(int, re.findall(r"about windows=(\d+)", told))
    assert main(small(tmp_path, *part)) == 2
    # 100 requests in the 5 busiest windows, which stand for themselves, and 100 in 5 that stand for the other
    # 700 of the trace: n / (n + q^2) with q = t.ppf(0.95, 4) = 2.13 for these.
    bound = (100 + 700 * 100 / (100 + t.ppf(0.95, 4) ** 2)) / 800
    told = capsys.readouterr().err
    shown = f"all in time would show {np.floor(1e4 * bound) / 100:.2f} % (95 % confidence)"
    assert f"200 requests in 10 windows: {shown}" in told
    assert "windows=40 simulates all of the trace" in told
    # What it says is enough, and the same load with a lower target.
    monkeypatch.undo()
    assert main(small(tmp_path, *drawn[:-1], f"windows={windows + 2}")) == 0
    assert main(small(tmp_path, *part[:-1], "windows=40")) == 0
    assert main(small(tmp_path, *part, "attainment=0.95")) == 0


def test_a_trace_that_is_too_short_is_told(trace, tmp_path, capsys):
    trace.write_text("".join(trace.read_text().splitlines(keepends=True)[:121]))  # 30 s
    assert main(small(tmp_path, f"trace={trace}")) == 2
    told = capsys.readouterr().err
    assert "cannot be shown with 120 requests in 4 windows" in told
    assert "windows=" not in told
    assert "the windows hold all of the trace" in told


def test_one_window_shows_nothing_of_the_others(trace, tmp_path, capsys):
    # One is the busiest, and one stands for the rest of the trace.
    assert main(small(tmp_path, f"trace={trace}", "windows=2")) == 2
    told = capsys.readouterr().err
    assert (
        "80 requests in 2 windows: cannot be sure of the others from fewer than two drawn windows with "
        "requests; windows=20 simulates" in told
    )
    assert "nan" not in told


def test_the_busiest_windows_are_a_census(tmp_path):
    strata = [Stratum(slice(0, 1), 1000, census=True), Stratum(slice(1, None), 6000)]
    trials, _ = made_up(tmp_path, lambda n: 1.0)
    trials.sizes([1000] * 4, strata)
    share = trials.share([900, 1000, 1000, 1000])
    assert share.low == pytest.approx((1000 * 0.9 + 6000 * best_bound(3000, 3)) / 7000)
    assert share.high == pytest.approx((1000 * 0.9 + 6000) / 7000)
    # Three windows are one busiest and two drawn: enough for bounds.
    trials.sizes([1000] * 3, strata)
    assert share.low > trials.share([900, 1000, 1000]).low > 0


def test_empty_drawn_windows_are_no_evidence(tmp_path, capsys):
    # Three parts of 20 hold requests, and of the second two one at most is drawn.
    path = tmp_path / "gap.csv"
    times = (
        [k / 42 for k in range(400)]
        + [151 + 0.7 * k for k in range(10)]
        + [190 + k for k in range(10)]
    )
    rows = "".join(f"{at},100,20\n" for at in times)
    path.write_text("arrival_time_s,input_tokens,output_tokens\n" + rows)
    assert main(small(tmp_path, f"trace={path}", "windows=3", "policy=jsq", "tp=1")) == 2
    told = capsys.readouterr().err
    assert "cannot be sure of the others from fewer than two drawn windows with requests" in told
    # The three windows with requests are all of the trace, whatever the empty ones.
    case = ask(small(tmp_path, f"trace={path}", "windows=6")).case
    plan = plan_of(stream_of(case), case)
    assert plan.whole
    assert plan.strata == [(slice(None), 420, False)]


def test_no_more_windows_are_advised_than_can_be_asked_for(trace, tmp_path):
    words = small(tmp_path, f"trace={trace}", "windows=3")
    assert all_of(_plan(ask(words))) == "windows=20"
    times = (f"{10 * k},100,20\n" for k in range(2501))
    trace.write_text("arrival_time_s,input_tokens,output_tokens\n" + "".join(times))
    advised = all_of(_plan(ask(words)))
    assert advised == "windows=1000 window_s=26"
    words = small(tmp_path, f"trace={trace}", *advised.split())
    assert _plan(ask(words)).whole


@pytest.mark.parametrize(
    "share, told",
    [(0.5, "50 %"), (0.000312, "0.031 %"), (0.05, "5.0 %"), (0.9996, "99.960 %")],
)
def test_a_share_that_is_simulated_is_never_none_or_all(share, told):
    assert _part(share) == told


def test_an_answer_that_no_number_of_gpus_gives_says_so(tmp_path, capsys):
    # Some prompts take longer than their target on an idle worker: attainment between its share and bound.
    words = ["rate_per_s=4", "policy=jsq", "tp=1", "max_gpus=2", "slo=ttft:0.1,itl:0.03"]
    case = ask(small(tmp_path, *words)).case
    scenario = scenario_of(case, 1, 1)
    loads = [window(scenario, {**case, "window": k}) for k in range(4)]
    idle = share_interval(idle_in_time(scenario, loads), [int(x.counted.sum()) for x in loads])
    assert idle.low < idle.seen < 1
    assert main(small(tmp_path, *words, f"attainment={(idle.low + idle.seen) / 2}")) == 1
    assert f"nor is an idle worker sure to be: {idle}: more windows" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words, says",
    [
        ([SLO], "what load? trace=FILE, or rate_per_s=RATE"),
        (["rate_per_s=3"], "slo = '': must be ttft:SECONDS,itl:SECONDS"),
        (
            ["rate_per_s=3", "slo=ttft:1,itl:-2"],
            "slo = 'ttft:1,itl:-2': itl = '-2': must be a positive number of seconds",
        ),
        (["rate_per_s=3", "slo=ttft:-1"], "ttft = '-1': must be a positive number"),
        (["rate_per_s=3", "slo=ttft:x,itl:1"], "ttft = 'x': must be a positive number"),
        (["rate_per_s=3", "slo=ttft:inf,itl:1"], "ttft = 'inf': must be a positive number"),
        (["rate_per_s=3", "slo=ttft:1"], "slo = 'ttft:1': must be ttft:SECONDS,itl:SECONDS"),
        (["rate_per_s=3", "slo=ttft:1,itl:2,e2e:3"], "must be ttft:SECONDS,itl:SECONDS"),
        (
            ["rate_per_s=3", "slo=ttft:1,itl:2,ttft:3"],
            "slo = 'ttft:1,itl:2,ttft:3': ttft is given twice",
        ),
        (
            [SLO, "rate_per_s=3", "policy=machine-wide", "tp=1"],
            "policy = 'machine-wide': is one worker per host, but tp = 1 leaves out "
            "gpus_per_host = 8, which must be among tp",
        ),
        (
            [SLO, "rate_per_s=3", "policy=jsq,machine-wide", "gpus_per_host=3"],
            "tp = 1,2 leaves out gpus_per_host = 3, which must be among tp (some of 1,2,4,8)",
        ),
        (
            [SLO, "rate_per_s=3", "policy=power-of-two:by=tokens"],
            "power-of-two: by = 'tokens': must be 'requests'",
        ),
        ([SLO, "rate_per_s=-1"], "rate_per_s = '-1': must be a number above 0 and below 100000"),
        (
            [SLO, "rate_per_s=3", "attainment=1"],
            "attainment = '1': must be a number above 0 and below 1",
        ),
        (
            [SLO, "rate_per_s=3", "policy=chiron"],
            "policy = 'chiron': must be some of jsq,power-of-two",
        ),
        ([SLO, "rate_per_s=3", "policy=aladdin:gama=1"], "there is no parameter 'gama'"),
        ([SLO, "rate_per_s=3", "policy=jsq:workers=2"], "workers is what is searched here"),
        ([SLO, "rate_per_s=3", "policy=jsq:fleet=start"], "fleet is what is searched here"),
        ([SLO, "rate_per_s=3", "tp=3"], "tp = '3': must be some of 1,2,4,8"),
        ([SLO, "rate_per_s=3", "llm=gpt"], "llm = 'gpt'"),
        ([SLO, "rate_per_s=3", "gpu=abacus"], "gpu = 'abacus'"),
        ([SLO, "rate_per_s=3", "lengths=mine"], "lengths = 'mine': must be one of"),
        ([SLO, "rate_per_s=3", "sort=true"], "sort = 'true': is for trace=FILE"),
        (
            [SLO, "rate_per_s=3", "hash_block_tokens=64"],
            "hash_block_tokens = '64': is for trace=FILE",
        ),
        ([SLO, "rate_per_s=3", "windows=1"], "windows = '1': must be an integer in 2..1000"),
        ([SLO, "trace=none.csv"], "trace = 'none.csv': there is no such file"),
        ([SLO, "rate_per_s=3", "colour=red"], "unknown argument 'colour=red'"),
        ([SLO, "rate_per_s=3", "iteration_times=none.json"], "iteration_times = 'none.json'"),
    ],
)
def test_slips_are_one_line_that_names_the_option(words, says, tmp_path, refused):
    assert says in refused(main, [*words, f"out={tmp_path}"])


def test_a_broken_trace_is_a_slip(tmp_path, capsys):
    path = tmp_path / "bad.csv"
    path.write_text("arrival_time_s,input_tokens,output_tokens\n0,5,x\n")
    assert main([SLO, f"trace={path}", f"out={tmp_path}"]) == 2
    assert "bad.csv" in capsys.readouterr().err


def test_an_interrupted_command_says_that_windows_are_kept(tmp_path, monkeypatch, capsys):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("experiments.capacity.answers", stop)
    assert main(small(tmp_path, "rate_per_s=3")) == 130
    assert "finished windows are kept" in capsys.readouterr().err
