"""What every declared figure keeps: runs in small, claims with a sentence and a verdict, pictures."""

from __future__ import annotations

import io
import math
from functools import cache

import pandas as pd
import pytest
from pydantic import ValidationError

from experiments.harness.catalogue import entries, load
from experiments.harness.claims import Claim, Verdict
from experiments.harness.execute import execute
from experiments.harness.figure import SEEDS, Grid, by_seed, dress, line, lines, listed, wide
from experiments.harness.parameters import Parameters
from experiments.output import new_figure

SMALL_8B = {"llms": ("llama-3.1-8b",), "duration_s": 20}
QUEUE = {"queued": 6000, "warm_up_s": 120, "history_s": 400}
DAY = {"hours": 1.0, "rate_scale": 0.01, "history_h": 2.0, "interval_s": 900.0}
SMALL = {
    "chiron-fig02": ("system", {"configurations": ("large",), "queues": (100,), "thetas": (0.8,),
                                "tail_s": 0}),
    "chiron-fig03": ("kv_watermark", {"batch_limits": (8, 16), "queued": 4000, "warm_up_s": 30,
                                      "measured_s": 60}),
    "chiron-fig04": (("source", "load_time_s"), {"tables": ("azure-conv-2023",), "step_s": 15,
                                                 "load_times_s": (15, 60), "seeds": 2}),
    "chiron-fig05": ("kind", {"cvs": (1.0, 8.0), "intervals": 50, "simulated_s": 200.0,
                              "left_out_s": 100.0, "percentiles": (50.0, 99.0)}),
    "chiron-fig06": (("policy", "max_groups"), {"deadlines_s": (300.0, 600.0), "cvs": (4.0,),
                                                "arriving_s": 900.0, "max_groups": (1, 8),
                                                "load_times_s": (15.0,), "by_request": False}),
    "chiron-fig09": (("configuration", "policy_name"), {"small_rates_per_s": (2,), "large_rates_per_s": (1,),
                                       "mixed_rates_per_s": (2,), "warm_up_s": 0,
                                       "measured_s": 60, "tail_s": 30}),
    "chiron-fig10": (None, {"small_queues": (500,), "large_queues": (500,), "mixed_queues": (500,),
                            "tail_s": 0}),
    "chiron-fig11": ("controller", {**SMALL_8B, "ladder": (32,)}),
    "chiron-fig12": (None, {**SMALL_8B, "overloads": (1.0, 2.0)}),
    "chiron-fig13": (("workload", "batch_ttft_s"), {
        "configurations": ("small",), "batch_ttft_s": (60, 240), "batch_requests": (3000,),
        "stream_rate_per_s": (40,), "stream_interactive_rate_per_s": (2,),
        "stream_control_interval_s": 10, "rest_s": 60}),
    "chiron-fig14": (None, {**QUEUE, "llms": ("llama-3.1-8b",), "batch_limits": (16,),
                            "queue_lengths": (20, 100), "claimed_length": 100,
                            "short_length": 20}),
    "chiron-fig15": ("controller", {**SMALL_8B, "duration_s": 60, "first_limit": 16}),
    "chiron-fig16": (None, {"rates_per_s": (5.0,), "itl_slos_s": (2.0, 0.5), "horizon_s": 300.0,
                            "settled_s": 60.0, "end_s": 120.0}),
    "chiron-fig17": (("over_provisioning", "cv"), {
        "cvs": (1.0, 8.0, 12.0), "over_provisionings": (1 / 0.95, 3.0), "warm_up_s": 100.0,
        "configurations": ("large",), "rates_per_s": (10.0,), "horizon_s": 600.0}),
    "chiron-fig18": ("policy_name", {"configurations": ("large",), "rates_per_s": (2,), "queues": (100,),
                            "warm_up_s": 0, "measured_s": 60, "tail_s": 0}),
    "chiron-fig19": ("policy", {"batch_requests": 3000, "batch_at_s": 60.0, "batch_ttft_s": 120.0,
                                "after_s": 60.0, "rate_per_s": 10.0}),
    "qlm-fig01": (("half", "policy", "llms"), {**QUEUE, "queued": 4000, "queue": 200, "points": 3,
                                               "batch_limit": 32, "interactive_per_s": 0.5,
                                               "batch_requests": 30, "batch_s": 60.0,
                                               "settle_s": 5.0, "policies": ("qlm", "edf"),
                                               "instances": (1, 2)}),
    "qlm-fig03": (None, {**QUEUE, "llms": ("mistral-7b",), "batch_limit": 32, "queue": 300,
                         "points": 4}),
    "qlm-fig04": (("serving", "burst"), {"llms": ("mistral-7b",), "bursts": (1, 8), "repeats": 2,
                                         "gap_s": 60, "warm_up_s": 60, "batch_limit": 16,
                                         "queued": 1500, "prefill_tokens": (4096,)}),
    "qlm-fig05": (("order", "run", "second", "weights"), {"gpus": ("a10-24gb",), "queue": 60,
                                                          "runs": (1, 10)}),
    "qlm-fig09": ("policy", {"interactive_per_s": (100.0,), "figure_9_per_s": 100.0, "trace_s": 1.0,
                             "policies": ("qlm", "vllm"), "loads": ("equal", "fixed"),
                             "patience_s": 300.0}, {"requests": 100}),
    "qlm-fig11": ("variant", {"interactive_per_s": (100.0,), "patience_s": 300.0},
                  {"requests": 100}),
    "qlm-fig12": (None, {"batch_1_per_s": (25.0,), "requests": 200, "patience_s": 600.0}),
    "qlm-fig15": ("a10_share", {"instances": 3, "requests_per_instance": 20, "patience_s": 300.0}),
    "qlm-fig16": (("policy", "share"), {"policies": ("qlm",), "shares": (0.0, 0.3), "requests": 150,
                                        "instances": 2, "patience_s": 900.0}),
    "qlm-fig17": ("per_s", {"requests_per_s": (5, 100), "requests": 60, "policies": ("qlm", "edf"),
                            "patience_s": 600.0}),
    "qlm-fig18": (None, {"llms": ("mistral-7b",), "groups": (0.5, 4), "short_groups": 0.5,
                         "batch_limit": 16, "queued": 3000, "seen": 500, "warm_up_s": 60,
                         "history_s": 300}),
    "qlm-fig19": ("delta", {"requests": (400,), "deltas": (1, 16), "patience_s": 600.0,
                            "average_batch": ("profiled",), "solve_time_s": 0.0}),
    "qlm-fig20": ("method", {"llms": ("mistral-7b",), "queues": (3000,), "gpus": 4,
                             "programme_groups": 3}),
    "sageserve-fig01": (None, {}),
    "sageserve-fig02": (None, {"gpus": ("a100-80gb",), "requests": 100}),
    "sageserve-fig04": (None, {"rate_scale": 0.01}),
    "sageserve-fig05": ("policy", DAY),
    "sageserve-fig10": (None, {"rate_scale": 0.002}),
    "sageserve-fig11": (("policy", "thresholds"), DAY),
    "sageserve-fig16": ("policy", {**DAY, "bursts_h": (0.25,), "minutes": 15.0}),
    "sageserve-fig17": ("policy", {**DAY, "from_h": 108.0}),
    "aladdin-fig02": ("seed", {"seeds": 3, "tables": ("sharegpt",), "history": 4000,
                               "requests": 4096, "edges": (64,)}),
    "aladdin-fig03": ("placement", {}),
    "aladdin-fig06": (("llm", "gpu", "tp", "kind"), {}),
    "aladdin-fig07": (("llm", "gpu", "tp", "kind"), {}),
    "aladdin-fig08": (("seed", "llm"), {"seeds": 2, "requests": 100, "batches": 20,
                                        "page_tokens": 256}),
    **dict.fromkeys(("aladdin-fig09", "aladdin-fig10"), (
        ("llm", "policy"), {"loads": (0.3,), "arrivals_s": 5.0, "patience_s": 60.0})),
    **dict.fromkeys(("aladdin-fig11", "aladdin-fig12"), (
        "policy", {"llms": ("llama-2-13b",), "rates_per_s": (4.0,), "targets": (0.5, 0.9),
                   "deciding": (), "max_gpus": 16, "arrivals_s": 5.0, "patience_s": 45.0})),
    "aladdin-fig13": (None, {"llms": ("llama-2-13b",), "rates_per_s": (4,), "rounds": 2,
                             "repeats": 1, "warm_up_s": 20.0}),
    "aladdin-figA": (None, {"rates_per_s": (25,), "groups": (2, 3, 100), "repeats": 1}),
    "aladdin-table3": (("seed", "link", "overhead_ms"), {
        "seeds": 2, "requests": 2000, "overheads_ms": (8,), "llms": ("llama-2-13b",),
        "gpus": ("a100-80gb",)}),
    "aladdin-demand": (None, {"loads": ("step",), "arrivals_s": 15.0, "patience_s": 40.0,
                              "period_s": 2.0}),
    "aladdin-gap": (("kind", "scarce"), {"chat": (6,), "triplets": (6,), "gaps": (4,),
                                         "moves": (4,), "problems": 2}),
    "aladdin-rebalancing": ("variant", {"loads": (1.0,), "predictors": ("noisy",),
                                        "arrivals_s": 12.0, "patience_s": 40.0}),
    "blitzscale-fig01": (None, {}),
    "blitzscale-fig04": (("seed", "variant", "keep_alive_s"), {"seeds": 3, "hours": 0.5,
                                                               "hosts": 6, "warm_s": 120}),
    "blitzscale-fig05": (("kind", "load"), {"layers": 7, "batches": 6, "load_times": (6,),
                                            "repeats": 1}),
    "blitzscale-fig09": (("seed", "source"), {"seeds": 2, "workloads": ("azure-code",),
                                              "loads": (0.7,), "times": 6}),
    "blitzscale-fig10": (("seed", "part", "n"), {
        "seeds": 2, "targets": (1, 3, 4), "many": 4, "random_targets": 2, "random_layers": 4}),
    "blitzscale-fig11": (("chains", "kv_part"), {"steps": 2}),
    "blitzscale-fig12": (("part", "rule", "loaded"), {"endless": 60}),
    "blitzscale-fig13": ("system", {"columns": ("azure-code",), "arrivals_s": 40.0, "patience_s": 30.0,
                                    "part_seeds": 1, "part_s": 20.0,
                                    "parted": ("blitzscale", "serverlessllm")}),
    **dict.fromkeys(("blitzscale-fig14", "blitzscale-fig17"), (
        "system", {"columns": ("azure-code",), "arrivals_s": 40.0, "patience_s": 30.0})),
    "blitzscale-fig16": (("seed", "workload", "keep_alive_s"), {
        "seeds": 2, "workloads": ("burstgpt", "azure-code")}),
    "blitzscale-fig18": ("system", {}),
    "blitzscale-stop-times": (("system", "timeout_s"), {
        "stops_s": (2.0, 20.0), "arrivals_s": 60.0, "patience_s": 30.0}),
    "learned-foresight": ("who", {"horizon_s": 90.0}),
    "learned-days": (("who", "setting"), {"horizon_s": 60.0}),
    "learned-worlds": ("who", {"horizon_s": 60.0}),
    "learned-forecast": ("seconds", {"stretches": 1, "judged": 1, "epochs": 1}),
}  # fmt: skip
"""By figure the columns of a case, or the one, by which its rows differ in kind; parameters in small; and
what is changed in the cases where these do not make them small enough.

sageserve-tableF and blitzscale-fig03, which are slow, have tests of their own (test_sageserve_figures,
test_blitzscale_serving_figures)."""


def of(name):
    return load(next(entry for entry in entries() if entry.name == name))


def small(name):
    """A figure's parameters in small; those without a default are the quick ones."""
    quick = of(name).parameters["quick"]
    fields = type(quick).model_fields.items()
    needed = {key: getattr(quick, key) for key, field in fields if field.is_required()}
    return type(quick)(**{**needed, "seeds": 1, **SMALL[name][1]})


@cache
def small_run(name):
    """Rows of a figure in small: of the cases of a kind one is run."""
    experiment, (columns, _, *fewer) = of(name), SMALL[name]
    done, rows = {}, []
    for whole in experiment.cases(small(name)):
        case = whole | dict(*fewer)
        kind = tuple(map(case.get, columns if isinstance(columns, tuple) else (columns,)))
        if kind not in done:
            outcome = execute(experiment.entry.module, case)
            assert not outcome.error
            done[kind] = outcome.rows
            assert outcome.rows
        rows += [{**case, **row} for row in done[kind]]
    return pd.DataFrame(rows)


@pytest.mark.parametrize("name", SMALL)
def test_a_figure_runs_in_small_judges_and_draws(name):
    experiment, settings, frame = of(name), small(name), small_run(name)
    claims = experiment.claims(frame, settings)
    assert len({claim.sentence for claim in claims}) == len(claims)
    for claim in claims:
        assert isinstance(claim, Claim)
        assert claim.sentence
        assert claim.paper
        assert claim.verdict in Verdict
    if experiment.tables is not None:
        assert all(experiment.tables(frame, settings).values())
    drawn = experiment.plot(frame, settings)
    for figure in drawn.values() if isinstance(drawn, dict) else [drawn]:
        assert figure.axes
        figure.savefig(io.BytesIO())


@pytest.mark.parametrize("number", ["05", "11", "16", "17"])
def test_most_claims_of_a_small_day_can_be_measured(number):
    """The others divide by what nothing in an hour so small uses."""
    name = f"sageserve-fig{number}"
    claims = list(of(name).claims(small_run(name), small(name)))
    measured = [claim for claim in claims if claim.verdict is not Verdict.UNMEASURED]
    assert len(measured) > len(claims) / 2


@pytest.mark.parametrize(
    "name, changes, message",
    [
        *(("chiron-fig04", {"load_times_s": times}, "load_times_s")
          for times in ((), (0,), (15, 3600))),
        ("chiron-fig05", {"configurations": ("small",), "rates_per_s": (50.0, 10.0)},
         "one value for each of small"),
        ("chiron-fig06", {"cvs": (0.0,)}, "greater than 0"),
        ("chiron-fig06", {"max_groups": (0,)}, "greater than 0"),
        ("chiron-fig09", {"small_rates_per_s": (-1,)}, "greater than 0"),
        ("chiron-fig10", {"small_queues": (0,)}, "greater than 0"),
        ("chiron-fig10", {"rebalance": False}, "rebalance"),
        ("chiron-fig12", {"overloads": (0.0,)}, "greater than 0"),
        ("chiron-fig13", {"configurations": ("large",), "batch_requests": (1, 2)},
         "one value for each of large"),
        ("chiron-fig13", {"batch_ttft_s": (0,)}, "greater than 0"),
        ("chiron-fig14", {"instances": 0}, "greater than"),
        ("chiron-fig14", {"queue_lengths": (1,)}, "greater than"),
        ("chiron-fig14", {"quantiles": (1.0,)}, "less than"),
        ("chiron-fig14", {"warm_up_s": 3600, "history_s": 3600}, "above warm_up_s"),
        ("chiron-fig16", {"horizon_s": 800.0, "settled_s": 600.0, "end_s": 200.0},
         "must leave something of horizon_s"),
        ("chiron-fig17", {"configurations": ("small",)}, "one value for each of small"),
        ("chiron-fig17", {"horizon_s": 300.0}, "must leave something"),
        ("chiron-fig17", {"over_provisionings": (1.0,)}, "greater than 1"),
        ("chiron-fig18", {"configurations": ("small",)}, "one value for each of small"),
        ("blitzscale-fig16", {"placement": "best"}, "'packed', 'cached' or 'random'"),
    ],
)  # fmt: skip
def test_parameters_that_make_no_figure_are_refused(name, changes, message):
    with pytest.raises(ValidationError, match=message):
        type(of(name).parameters["quick"])(**changes)


class Two(Parameters):
    sizes: tuple[int, ...] = (1, 2)
    names: tuple[str, ...] = ("a", "b")


def test_a_grid_goes_over_the_last_column_fastest():
    grid = Grid(
        {
            "seed": SEEDS,
            "size": "sizes",
            "both": lambda parameters, case: [{"x": case["size"], "y": k} for k in (7, 8)],
        },
        keep=("names",),
        first=("names",),
    )
    found = grid(Two(seeds=1))
    assert [(case["size"], case["x"], case["y"]) for case in found] == [
        (1, 1, 7), (1, 1, 8), (2, 2, 7), (2, 2, 8),
    ]  # fmt: skip
    assert list(found[0]) == ["names", "seed", "size", "x", "y"]
    assert found[0]["names"] == ["a", "b"], "as JSON has it"


def test_what_varies_wins_over_what_is_kept():
    assert Grid({"sizes": (5,)}, keep=("sizes",))(Two()) == [{"sizes": 5}]


def test_numbers_and_lines_over_seeds():
    frame = pd.DataFrame({"seed": [1, 1, 2, 2], "x": [1, 2, 1, 2], "y": [1.0, 2.0, 3.0, 6.0]})
    assert by_seed(frame, lambda one: one["y"].sum()).mean == 6
    assert wide(frame, "x", "y").loc[2].tolist() == [3, 6]
    assert listed({1: 9.0, 8: 1.25}, "x") == "9x at 1, 1.25x at 8"
    assert listed({0.5: 9.0}, scale=100, place=" %") == "9 at 50 %"
    assert by_seed(frame, lambda one: math.inf if one["x"].iloc[0] else 0).mean == math.inf
    axes = new_figure(3, 2).subplots()
    line(axes, frame, "x", "y", scale=10, along=2, label="both")
    dress(axes, title="title", log="x", ticks=(1, 2), bottom=0, legend="upper left")
    assert axes.lines[0].get_xydata().tolist() == [[0.5, 20], [1, 40]]
    assert axes.collections[0].get_datalim(axes.transData).y1 == pytest.approx(60)
    assert [text.get_text() for text in axes.get_xticklabels()] == ["1", "2"]
    lines(axes, frame, "seed", (2, 1, 3), {1: ("first", "C1", "s--")}, "x", "y", band=None)
    assert [drawn.get_label() for drawn in axes.lines[1:]] == ["2", "first"]
    assert axes.lines[2].get_marker() == "s"
