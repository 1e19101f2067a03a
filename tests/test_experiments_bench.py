"""The benchmark command runs and gives its columns; how fast it is, no test says."""

from __future__ import annotations

import csv
from importlib.util import find_spec

import pytest

from experiments import (
    bench,
    bench_engines,
    bench_env,
    bench_phases,
    bench_training,
)
from experiments.bench_engines import arrivals, cluster, run_once
from experiments.output import shown, text_table

LONG = {"training", "env", "week", "memory"}


@pytest.mark.parametrize(
    "part",
    [pytest.param(p, marks=[pytest.mark.slow] if p in LONG else []) for p in sorted(bench.PARTS)],
)
@pytest.mark.slow
def test_every_part_runs_quickly_and_writes_its_columns(part, tmp_path, capsys):
    if part in bench.NEEDS and find_spec(bench.NEEDS[part]) is None:
        pytest.skip(f"{bench.NEEDS[part]} is not installed")
    assert bench.main([f"what={part}", "quick=true", f"out={tmp_path}"]) == 0
    assert f"\n{part}\n" in capsys.readouterr().out
    with open(tmp_path / f"bench_{part}.csv", newline="") as file:
        rows = list(csv.reader(file))
    assert len(rows) > 1
    assert {len(row) for row in rows} == {len(set(rows[0]))}
    assert (tmp_path / "bench_machine.csv").read_text().startswith("what,value\ncpu,")


def test_the_busiest_benchmark_reaches_what_it_claims():
    spec = cluster("chiron", 10)
    assert [pool.n_slots for pool in spec.pools] == [4, 3, 3]
    requests = arrivals("chiron", 10 * 16.0, 3_000)
    from llmscale_env.sim.fast import FastEngine

    engine = FastEngine(spec, requests)
    engine.advance(bench_engines.END_PS)
    results = engine.results()
    mixed, batch = slice(4, 7), slice(7, 10)
    by_class = [results["instance"][requests.slo_class == c] for c in (0, 1)]
    assert set(by_class[0]) <= set(range(7)), "interactive requests never run on batch instances"
    assert set(by_class[1]) <= set(range(4, 10))
    assert set(by_class[1]) & set(range(10)[mixed]), "mixed instances pull from the shared queue"
    assert set(by_class[1]) & set(range(10)[batch])
    assert (engine.instances()["batch_limit"] != bench_engines.BATCH_LIMIT).any(), "the controller"


def test_both_engines_do_the_same_work():
    spec, requests = cluster("chiron", 3), arrivals("chiron", 20.0, 60)
    assert run_once("fast", spec, requests)[1] == run_once("reference", spec, requests)[1]


def test_timed_event_loop_gives_the_engines_results():
    from llmscale_env.sim.fast import FastEngine

    spec, requests = cluster("chiron", 5), arrivals("chiron", 50.0, 500)
    timed, plain = FastEngine(spec, requests), FastEngine(spec, requests)
    count, spent_ns = bench_phases.event_times(timed)
    plain.advance(bench_engines.END_PS)
    assert (timed.results() == plain.results()).all()
    assert 0.98 * len(requests) <= count[0] <= len(requests), "all but interrupted ones"
    assert (spent_ns[count > 0] >= 0).all()


def test_stopwatch_counts_overlapping_calls_once():
    watch = bench_env.Stopwatch()
    watch.spans = [(0.0, 2.0), (1.0, 3.0), (5.0, 6.0), (5.2, 5.4)]
    assert watch.total_s() == pytest.approx(4.0)
    assert watch.total_s(since=4.0) == pytest.approx(1.0)


def test_a_ledger_counts_every_second_once_for_the_innermost_call():
    times = iter([0.0, 1.0, 3.0, 7.0, 8.0, 20.0, 21.0])
    ledger = bench_training.Ledger(lambda: next(times))

    class Work:
        def inner(self):
            return "done"

        def outer(self):
            return self.inner()

    work = Work()
    plan = [(Work, "inner", ledger.wrapper("a")), (work, "outer", ledger.wrapper("b"))]
    with bench_env.wrapped(plan), ledger.of("rest"):
        assert work.outer() == "done"
    assert ledger.spent_s == {"rest": 1.0 + 12.0, "b": 2.0 + 1.0, "a": 4.0}
    assert "outer" not in vars(work), "methods are as they were"
    assert Work.inner.__name__ == "inner"
    assert not hasattr(Work.inner, "__wrapped__")


@pytest.mark.parametrize("agent", ["ppo", "maskable-ppo"])
@pytest.mark.slow
def test_shares_of_training_are_a_whole_and_every_part_has_some(agent):
    pytest.importorskip("sb3_contrib")
    found = bench_training.ours("it", {"agent": agent}, quick=True)
    assert found["steps"] == 480
    shares = [found[f"{part}_percent"] for part in bench_training.PARTS]
    assert sum(shares) == pytest.approx(100.0, abs=0.1)
    assert min(shares) > 0


def test_tables_align_numbers_to_the_right():
    assert text_table(("name", "n"), [("a", 5), ("bcd", 12_000)]).splitlines() == [
        "name       n",
        "a          5",
        "bcd   12,000",
    ]
    assert [shown(x) for x in (1234.5, 0.123456, True, "x")] == ["1,234", "0.1235", "True", "x"]


@pytest.mark.parametrize(
    "words,message",
    [
        (["what=speed"], "what = 'speed': must be some of engines,phases"),
        (["what="], "what= lacks a value"),
        (["quick=yes"], "quick = 'yes': must be true or false"),
        (["fast"], "unknown argument 'fast'"),
    ],
)
def test_slips_are_one_line_and_code_2(words, message, refused):
    assert message in refused(bench.main, words)
