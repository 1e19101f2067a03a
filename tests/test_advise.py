"""`llmscale advise`: what it names keeps what it promises, and it says what would where nothing does."""

from __future__ import annotations

import csv
import html
import itertools
import json
import shlex
import shutil
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from baselines import make_policy
from baselines.parameters import parse_policy
from baselines.registry import TUNABLE
from baselines.tuning.episodes import fingerprint
from experiments.desk.advise import advise, ask, changed_cases, main
from experiments.desk.advising.case import (
    INTERVAL_S,
    LEAST_REQUESTS,
    MOST_AFTER_S,
    POOL,
    TUNING_SEED,
    Case,
    split,
)
from experiments.desk.advising.episode import Ending, play_tuning, run
from experiments.desk.advising.judge import WORST_S, _worst, fleets, judge, keeps
from experiments.desk.advising.report import rests_on
from experiments.desk.advising.search import HEADROOM, fixed_settings, key_of, spelled, trials_of
from experiments.desk.answer import Answer
from experiments.desk.targets import slo_of
from llmscale_env._cli import Slip
from llmscale_env.cluster.iteration_data import load_models, model_to_json
from llmscale_env.cluster.iteration_time import iteration_time_model
from llmscale_env.control.command import Command
from llmscale_env.control.simulation import ClusterSimulation
from llmscale_env.control.view import ClusterView
from llmscale_env.scenarios.schema import Scenario
from llmscale_env.workload.readers import read_trace

SLO = "slo=ttft:1,itl:0.05"
FEW = ("load_s=60", "trials=5", "workers=1")
SPAN_S = 900.0


def arrivals(shape: str, span_s: float, rate_per_s: float, seed: int) -> np.ndarray:
    """Seconds of a Poisson process: steady, over a day's curve, or with bursts of half a minute."""
    rng = np.random.default_rng(seed)
    second = np.arange(int(span_s))
    rate = np.full(len(second), rate_per_s)
    if shape == "daily":
        rate = rate_per_s * (1 - 0.6 * np.cos(2 * np.pi * second / span_s))
    if shape == "bursty":
        rate = np.where(second % 150 < 30, 2.5, 0.6) * rate_per_s
    counts = rng.poisson(rate)
    return np.sort(np.repeat(second, counts) + rng.random(counts.sum()))


def write_trace(
    path: Path,
    shape: str = "steady",
    span_s: float = SPAN_S,
    rate_per_s: float = 8.0,
    seed: int = 1,
) -> pd.DataFrame:
    """A plain trace; it lasts from 0 to `span_s`."""
    arrival_s = arrivals(shape, span_s, rate_per_s, seed)
    arrival_s = np.concatenate([[0.0], arrival_s, [span_s]])
    rng = np.random.default_rng([seed, 1])
    frame = pd.DataFrame(
        {
            "arrival_time_s": arrival_s.round(6),
            "input_tokens": rng.integers(200, 2000, len(arrival_s)),
            "output_tokens": rng.integers(20, 400, len(arrival_s)),
        }
    )
    frame.to_csv(path, index=False)
    return frame


def answer_of(folder: Path, *words: str) -> Answer:
    """What the command finds with these words."""
    return advise(ask([*words, f"out={folder / 'out'}"]))


def case_of(folder: Path, *words: str, **changes: Any) -> Case:
    """The case that these words ask for."""
    return replace(ask([*words, f"out={folder / 'out'}"]).case, **changes)


@pytest.fixture
def steady(tmp_path: Path) -> Path:
    """A steady trace."""
    write_trace(tmp_path / "steady.csv")
    return tmp_path / "steady.csv"


@pytest.mark.parametrize("shape", ["steady", "daily", "bursty"])
def test_the_fixed_fleet_keeps_what_it_promises_and_the_winner_hangs_on_no_seed(tmp_path, shape):
    write_trace(tmp_path / "t.csv", shape, 1200.0)
    words = (f"trace={tmp_path / 't.csv'}", SLO, "policies=hpa,paced", "what_ifs=false", *FEW)
    found = [answer_of(tmp_path, *words, f"seed={seed}") for seed in (0, 7)]
    assert found[0].ranking == found[1].ranking
    assert found[0].winner == found[0].ranking[0].policy
    fixed = next(r for r in found[0].ranking if r.policy == "static")
    assert fixed.keeps
    assert fixed.held_out.attainment["all"] >= 0.99
    assert {r.policy for r in found[0].ranking} == {"static", "hpa", "paced"}
    kept = [r.held_out.gpu_hours for r in found[0].ranking if r.keeps]
    assert kept == sorted(kept)
    # One instance fewer is not enough for the first part with its headroom.
    case = case_of(tmp_path, *words)
    if fixed.settings[POOL] > 1:
        fewer = replace(case, initial=fixed.settings[POOL] - 1).tuning(HEADROOM)
        static = make_policy("static", **fixed_settings(fixed.settings[POOL] - 1, None))
        assert run(static, fewer, 1000).summary["all/slo_attainment"] < 0.99


def test_workers_and_a_second_run_change_nothing(steady, tmp_path):
    words = (f"trace={steady}", SLO, "policies=keda,hpa", "load_s=60", "trials=4", "what_ifs=false")
    alone = answer_of(tmp_path, *words, "workers=1")
    kept = {p.name: p.read_bytes() for p in (tmp_path / "out" / "cache").iterdir()}
    again = answer_of(tmp_path, *words, "workers=1")
    assert {p.name: p.read_bytes() for p in (tmp_path / "out" / "cache").iterdir()} == kept
    two = advise(ask([*words, "workers=2", f"out={tmp_path / 'other'}"]))
    assert alone.ranking == again.ranking == two.ranking


def test_an_outcome_is_what_a_run_of_the_whole_trace_brought(steady, tmp_path):
    case = case_of(tmp_path, f"trace={steady}", SLO, *FEW, "usd_per_gpu_hour=2", initial=3)
    found = judge("static", fixed_settings(3, None), case)
    made = run(make_policy("static"), case.whole(), 0).requests
    assert set(made["outcome"]) <= {"on_time", "late"}
    late = made["arrival_s"] >= case.tuned_s
    for part, rows, length_s in (
        (found.tuned, ~late, case.tuned_s),
        (found.held_out, late, case.horizon_s - case.tuned_s),
    ):
        share = (made[rows]["outcome"] == "on_time").mean()
        assert part.attainment["all"] == pytest.approx(share)
        assert part.gpu_hours == pytest.approx(3 * length_s / 3600)
        assert part.usd == pytest.approx(2 * part.gpu_hours)
        assert (part.scaling_actions, part.peak_gpus, part.mean_gpus) == (0, 3, pytest.approx(3))
        assert part.ttft_p99_s["all"] == pytest.approx(made[rows]["ttft_s"].quantile(0.99))
    series = found.series
    assert series.start_s == case.tuned_s
    assert set(series.ready) == {3}
    assert sum(series.arrivals_per_s) * series.interval_s == pytest.approx(late.sum())
    lengths = {len(getattr(series, name)) for name in ("ready", "loading", "waiting", "running")}
    assert lengths == {len(series.arrivals_per_s), len(series.on_time["all"])} != {0}
    shares = [share for share in series.on_time["all"] if share is not None]
    assert min(shares) <= found.held_out.attainment["all"] <= max(shares)


def test_decisions_tell_when_and_why_instances_come_and_go(tmp_path):
    write_trace(tmp_path / "t.csv", "bursty")
    case = case_of(tmp_path, f"trace={tmp_path / 't.csv'}", SLO, *FEW, initial=1)
    found = judge("hpa", {"kv_target": 0.05, "down_window_s": 30.0}, case)
    decisions = found.series.decisions
    assert len(decisions) == found.held_out.scaling_actions > 0
    assert all(d.time_s >= case.tuned_s and "kv" in d.reason for d in decisions)
    assert all(a.instances != b.instances for a, b in itertools.pairwise(decisions))


def test_an_instance_serves_load_s_after_its_order(steady, tmp_path):
    case = case_of(tmp_path, f"trace={steady}", SLO, "load_s=95", initial=1)
    made = run(make_policy("static", **{POOL: 2}), case.whole(), 0).series
    serves = made["time_s"][made[f"{POOL}/active"] == 2].iloc[0]
    assert 95 <= serves <= 95 + INTERVAL_S
    # Also where another instance has just left its weights behind.
    assert case.whole().scenario.fleet.host_keep_alive_s == 0


def test_what_a_policy_needs_is_what_a_simulation_says(tmp_path):
    write_trace(tmp_path / "t.csv", "bursty", rate_per_s=16.0)
    words = (f"trace={tmp_path / 't.csv'}", SLO, "what_ifs=false", *FEW)
    answer = answer_of(tmp_path, *words, "policies=hpa:kv_target=0.95+queue_target=100")
    hpa = next(r for r in answer.ranking if r.policy == "hpa")
    assert not hpa.keeps
    assert answer.winner == "static"
    assert {r.policy: r.runs_on for r in answer.ranking} == {
        "static": "a replica count",
        "hpa": "HPA",
    }
    floor = int(hpa.needs.partition("min_instances=")[2].split()[0])
    case = case_of(tmp_path, *words, initial=answer.ranking[0].settings[POOL])
    for count, enough in ((floor, True), (floor - 1, False)):
        outcome = judge("hpa", {**hpa.settings, "min_instances": count}, case).held_out
        assert keeps(outcome, case.targets) is enough


def test_too_few_gpus_are_said_with_how_many_it_takes(tmp_path, capsys):
    write_trace(tmp_path / "t.csv", "steady", rate_per_s=16.0)
    words = [
        f"trace={tmp_path / 't.csv'}",
        SLO,
        "policies=hpa",
        "max_gpus=1",
        "what_ifs=false",
        *FEW,
    ]
    assert main([*words, f"out={tmp_path / 'out'}"]) == 1
    said = capsys.readouterr().out
    assert "No settings tuned on the first half hold." in said
    assert "but max_gpus is 1" in said
    assert "llmscale deploy" not in said
    answer = Answer.model_validate_json((tmp_path / "out" / "answer.json").read_text())
    assert not any(r.keeps for r in answer.ranking)
    shares = [r.held_out.attainment["all"] for r in answer.ranking]
    assert shares == sorted(shares, reverse=True)
    gpus = int(answer.ranking[0].needs.partition("max_gpus=")[2].split(":")[0])
    assert answer.fixed is not None
    assert gpus == answer.fixed.gpus > 1
    case = case_of(tmp_path, *words, max_gpus=gpus)
    for count, enough in ((gpus, True), (gpus - 1, False)):
        outcome = judge("static", fixed_settings(count, None), case).held_out
        assert keeps(outcome, case.targets) is enough


def test_a_target_that_no_fleet_reaches_is_no_question_of_the_fleet(steady, tmp_path):
    words = (f"trace={steady}", "slo=ttft:1,itl:0.001", "policies=hpa", "max_gpus=2", *FEW)
    answer = answer_of(tmp_path, *words, "what_ifs=false")
    assert all("no fixed fleet of up to 8 GPUs" in r.needs for r in answer.ranking)
    case = case_of(tmp_path, *words)
    assert fleets(case, None, 1).attainment < 0.99


def test_the_files_hold_the_answer(steady, tmp_path, capsys):
    out = tmp_path / "out"
    words = [f"trace={steady}", SLO, "policies=hpa", "usd_per_gpu_hour=2.5", *FEW, f"out={out}"]
    assert main(words) == 0
    shown = capsys.readouterr().out
    answer = Answer.model_validate_json((out / "answer.json").read_text(encoding="utf-8"))
    assert answer.question.words == ("advise", *words)
    assert answer.question.requests == len(read_trace(steady))

    def rows(name: str) -> list[dict[str, str]]:
        with (out / name).open(newline="") as file:
            return list(csv.DictReader(file))

    assert [r["policy"] for r in rows("ranking.csv")] == [r.policy for r in answer.ranking]
    for row, ranked in zip(rows("ranking.csv"), answer.ranking, strict=True):
        assert float(row["held_out_gpu_hours"]) == ranked.held_out.gpu_hours
        assert float(row["held_out_attainment/all"]) == ranked.held_out.attainment["all"]
        assert ranked.spelled in shown
    assert len(rows("what_ifs.csv")) == len(answer.what_ifs) > 0
    assert {w.group for w in answer.what_ifs} == {"load", "loading", "gpu", "slo"}
    assert all(w.outcome.usd is None for w in answer.what_ifs if w.group == "gpu")
    assert all(w.outcome.usd is not None for w in answer.what_ifs if w.group != "gpu")
    assert len(rows("series.csv")) == sum(len(r.series.ready) for r in answer.ranking)
    assert (out / "page.html").stat().st_size > 1e6
    assert any("measured" in sentence for sentence in answer.rests_on)
    assert "gpu: by rooflines of the cards" in shown
    assert shlex.join(["llmscale", "deploy", f"answer={out / 'answer.json'}"]) in shown
    assert main([*words, "what_ifs=false"]) == 0
    assert not (out / "what_ifs.csv").exists()


def test_what_ifs_change_one_thing_and_say_it(steady, tmp_path):
    case = case_of(tmp_path, f"trace={steady}", SLO, *FEW)
    changed = list(changed_cases(case, tmp_path))
    group_of = {"load": "load", "load_s": "loading", "gpu": "gpu", "targets": "slo"}
    for group, value, other in changed:
        different = [
            f.name for f in fields(Case) if getattr(case, f.name) != getattr(other, f.name)
        ]
        if group == "gpu":
            different = [
                name for name in different if name not in ("iteration_times", "times_digest")
            ]
            if value == case.gpu:
                assert different == []
                continue
        assert [group_of[name] for name in different] == [group]
    said = {(group, value) for group, value, _ in changed}
    assert len(said) == len(changed)
    assert {"x0.5", "x1.5", "x2"} == {value for group, value in said if group == "load"}
    assert {"30 s", "120 s", "180 s"} == {value for group, value in said if group == "loading"}
    more = next(other for _, value, other in changed if value == "x2")
    few, many = case.whole().requests, more.whole().requests
    assert len(many) == pytest.approx(2 * len(few), rel=0.01)
    assert few.arrival_s.max() <= case.span_s


def test_gpus_are_compared_by_one_kind_of_times(steady, tmp_path):
    case = case_of(tmp_path, f"trace={steady}", SLO, *FEW)
    assert iteration_time_model(case.llm, case.gpu, case.tp).kind == "composed"
    changed = list(changed_cases(case, tmp_path))
    cases = {value: other for group, value, other in changed if group == "gpu"}
    assert next(iter(cases)) == case.gpu
    for gpu, other in cases.items():
        found = iteration_time_model(case.llm, gpu, case.tp, data=other.iteration_times)
        card = iteration_time_model(case.llm, gpu, case.tp, "roofline")
        assert found.decode_s(32, 32_000) == pytest.approx(card.decode_s(32, 32_000), rel=0.01)
        assert other.whole().scenario.iteration_times == other.iteration_times

    def tokens_s(gpu: str) -> float:
        return iteration_time_model(case.llm, gpu, data=cases[gpu].iteration_times).decode_s(
            8, 8000
        )

    assert tokens_s("h100-80gb") < tokens_s("a100-80gb") < tokens_s("a100-40gb")


def test_a_fixed_fleet_may_be_given(steady, tmp_path):
    words = (f"trace={steady}", SLO, "policies=static:serving=7,hpa:kv_target=0.5", *FEW)
    answer = answer_of(tmp_path, *words, "what_ifs=false")
    static = next(r for r in answer.ranking if r.policy == "static")
    assert static.settings == {POOL: 7}
    assert static.held_out.peak_gpus == 7
    assert answer.fixed is not None
    assert answer.fixed.instances < 7
    assert any("begins with the 7 instances" in line for line in answer.rests_on)


def test_progress_is_told_where_there_is_no_terminal(steady, tmp_path, capsys):
    words = (f"trace={steady}", SLO, "policies=keda,hpa", "load_s=60", "trials=2", "workers=1")
    answer_of(tmp_path, *words, "what_ifs=false")
    told = capsys.readouterr().err.splitlines()
    assert "advise: fixed fleet ..." in told
    assert [line for line in told if "is tuned" in line] == [
        "advise: 1 of 2: keda is tuned",
        "advise: 2 of 2: hpa is tuned",
    ]


def test_what_times_leave_out_and_where_they_are_extrapolated_is_told(steady, tmp_path):
    words = (SLO, "policies=hpa", *FEW)

    def told(path: Path, *more: str) -> str:
        asked = ask([f"trace={path}", *words, *more, f"out={tmp_path / 'out'}"])
        return "\n".join(rests_on(asked.trace, asked.case, 1, ()))

    assert "So a real server is slower" in told(steady)
    assert "extrapolated" not in told(steady)
    own = calibrated(tmp_path / "times.json", 1.0)
    record = json.loads(own.read_text())
    record["models"][0]["kind"] = "user"
    own.write_text(json.dumps(record))
    assert "a real server" not in told(steady, f"iteration_times={own}")
    frame = pd.read_csv(steady)
    frame.loc[[5, 2000], "input_tokens"] = 140_000
    frame.to_csv(tmp_path / "long.csv", index=False)
    said = told(tmp_path / "long.csv")
    assert "extrapolated: context of 140," in said
    assert "prefill of 140,000 tokens, measured to 4,096" in said
    assert "2 requests have more than the 131,072 tokens" in said


def test_spelled_settings_are_those_of_other_commands(steady, tmp_path):
    words = (f"trace={steady}", SLO, "policies=hpa,llumnix,dynamo,paced", "what_ifs=false", *FEW)
    for ranked in answer_of(tmp_path, *words).ranking:
        name, _ = parse_policy(ranked.spelled)
        assert name == ranked.policy
        made: Any = make_policy(ranked.spelled)
        assert made.parameters == TUNABLE[name](**ranked.settings).parameters
    assert spelled("hpa", {"kv_target": None}) == "hpa:kv_target=none"


def test_classes_are_judged_each_by_its_own_targets(tmp_path):
    frame = write_trace(tmp_path / "t.csv")
    frame["slo_class"] = np.where(np.arange(len(frame)) % 4, "chat", "batch")
    frame.to_csv(tmp_path / "t.csv", index=False)
    words = (f"trace={tmp_path / 't.csv'}", "policies=hpa", *FEW)
    case = case_of(tmp_path, *words, "slo=chat/ttft:1,itl:0.05+batch/ttft:600,itl:1")
    assert {t.name: (t.ttft_s, t.itl_s) for t in case.targets} == {
        "batch": (600.0, 1.0),
        "chat": (1.0, 0.05),
    }
    outcome = judge("static", fixed_settings(1, None), case).held_out
    assert outcome.attainment["batch"] > outcome.attainment["chat"] + 0.1
    assert not keeps(outcome, case.targets)
    assert outcome.worst_five_minutes is not None
    assert outcome.worst_five_minutes <= outcome.attainment["chat"]
    alike = ask([*words, SLO, f"out={tmp_path / 'out'}"])
    assert {(t.name, t.ttft_s) for t in alike.case.targets} == {("batch", 1.0), ("chat", 1.0)}


@pytest.mark.parametrize("form", ["epoch", "stamps", "json"])
def test_other_columns_and_clocks_give_the_same_requests(steady, tmp_path, form):
    plain = pd.read_csv(steady)
    begin_s = 1.7e9
    ts: Any = begin_s + plain["arrival_time_s"]
    if form == "stamps":
        ts = pd.to_datetime(ts, unit="s").dt.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    other = pd.DataFrame(
        {
            "id": range(len(plain)),
            "ts": ts,
            "prompt": plain["input_tokens"],
            "gen": plain["output_tokens"],
        }
    )
    path = tmp_path / ("log.jsonl" if form == "json" else "log.csv")
    if form == "json":
        other.to_json(path, orient="records", lines=True, double_precision=15)
    else:
        other.to_csv(path, index=False)
    words = (f"trace={path}", "columns=arrival:ts,input:prompt,output:gen", SLO, *FEW)
    asked = ask([*words, f"out={tmp_path / 'out'}"])
    own = read_trace(steady)
    assert np.abs(asked.trace.arrival_ps - own.arrival_ps).max() < 1e7  # 10 microseconds
    assert (asked.trace.input_tokens == own.input_tokens).all()
    assert (asked.trace.output_tokens == own.output_tokens).all()
    assert (asked.case.span_s, asked.case.tuned_s) == (pytest.approx(SPAN_S), SPAN_S / 2)


def test_a_plain_trace_may_count_from_1970(steady, tmp_path):
    frame = pd.read_csv(steady)
    frame["arrival_time_s"] += 1.7e9
    frame.to_csv(tmp_path / "epoch.csv", index=False)
    words = (SLO, "policies=hpa:kv_target=0.1", "what_ifs=false", *FEW)
    one = answer_of(tmp_path, f"trace={steady}", *words)
    other = answer_of(tmp_path, f"trace={tmp_path / 'epoch.csv'}", *words)
    assert [r.policy for r in one.ranking] == [r.policy for r in other.ranking]
    assert one.question.span_s == pytest.approx(other.question.span_s)


def test_the_worst_five_minutes_are_a_classes_own():
    arrival_s = np.arange(0.0, 1200.0, 1.0)
    outcome = np.where((arrival_s >= 500) & (arrival_s < 530), "late", "on_time")
    one = pd.DataFrame({"arrival_s": arrival_s, "outcome": outcome})
    good = one.assign(outcome="on_time")
    assert _worst([good, one], 0.0, 1200.0) == pytest.approx(1 - 30 / WORST_S)
    assert _worst([good], 0.0, 1200.0) == 1.0
    assert _worst([one.iloc[:0]], 0.0, 1200.0) is None
    cut = one.assign(outcome="unfinished")
    assert _worst([cut], 0.0, 1200.0) == 0.0


def test_long_traces_try_fewer_settings_and_never_none():
    counts = [trials_of("hpa", requests) for requests in (100, 40_000, 80_000, 10**9)]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] == counts[1] > counts[2] > counts[3] > 0
    assert trials_of("twin", 100) < trials_of("hpa", 100)


# ---- the trace, its halves and its end ----


def test_no_file_that_was_given_is_written_over(steady, tmp_path, capsys):
    out = tmp_path / "out"
    out.mkdir()
    words = [SLO, "policies=hpa:kv_target=0.5", "what_ifs=false", *FEW, f"out={out}"]
    columns = "columns=arrival:arrival_time_s,input:input_tokens,output:output_tokens"
    source = out / "trace.csv"
    shutil.copyfile(steady, source)
    before = source.read_bytes()
    assert main([*words, f"trace={source}", columns]) == 0
    assert source.read_bytes() == before
    kept = list((out / "cache").glob("requests-*.csv"))
    assert len(kept) == 1
    # Nor is one that the answer has the same name for.
    for name in ("series.csv", "what_ifs.csv", "ranking.csv"):
        shutil.copyfile(steady, out / name)
        capsys.readouterr()
        assert main([*words, f"trace={out / name}"]) == 2
        assert f"{name} would be written over trace=" in capsys.readouterr().err
        assert (out / name).read_bytes() == before


def test_a_slip_leaves_no_copy_of_the_trace(steady, tmp_path):
    columns = "columns=arrival:arrival_time_s,input:input_tokens,output:output_tokens"
    words = [f"trace={steady}", columns, f"out={tmp_path / 'out'}"]
    for slip in ([SLO, "policies=chiron"], [SLO, "load_s=5000"], ["slo=chat/ttft:1,itl:1"]):
        assert main([*words, *slip]) == 2
        assert not list((tmp_path / "out").rglob("*"))


def calibrated(path: Path, slower: float) -> Path:
    """Iteration times of one card, so many times as long as the shipped ones."""
    (model,) = (
        m for m in load_models() if (m.llm, m.gpu, m.tp) == ("llama-3.1-8b", "a100-80gb", 1)
    )
    record = model_to_json(model)
    for key, value in record.items():
        if key.endswith("_s") and isinstance(value, list):
            record[key] = [slower * x for x in value]
    path.write_text(json.dumps({"schema_version": 1, "models": [record]}))
    return path


def test_nothing_is_replayed_after_a_calibration(steady, tmp_path):
    times = calibrated(tmp_path / "times.json", 1.0)
    words = (f"trace={steady}", SLO, f"iteration_times={times}", "policies=hpa", *FEW)
    first = case_of(tmp_path, *words)
    assert key_of(first) == key_of(case_of(tmp_path, *words))
    shared = fingerprint("x", [first.whole().scenario])
    calibrated(times, 1.5)
    other = case_of(tmp_path, *words)
    assert key_of(first) != key_of(other)
    # The search of `llmscale tune` has the same key for the same scenario, whose file has changed.
    assert fingerprint("x", [first.whole().scenario]) != shared


def test_requests_of_the_last_seconds_are_followed_until_they_are_judged(tmp_path):
    arrival_s = np.linspace(0.0, 1200.0, 240)
    frame = pd.DataFrame(
        {"arrival_time_s": arrival_s, "input_tokens": 60_000, "output_tokens": 200}
    )
    frame.to_csv(tmp_path / "long.csv", index=False)
    words = (f"trace={tmp_path / 'long.csv'}", "slo=ttft:60,itl:0.5", "policies=hpa", *FEW)
    case = case_of(tmp_path, *words, "max_gpus=32", initial=16)
    verdict = judge("static", fixed_settings(16, None), case)
    assert verdict.held_out.attainment == verdict.tuned.attainment == {"all": 1.0}
    assert verdict.held_out.gpu_hours == pytest.approx(16 * (case.horizon_s - case.tuned_s) / 3600)
    part = case.tuning(1.0)
    told = play_tuning(
        case, 1.0, make_policy("static"), ClusterSimulation(part.scenario), TUNING_SEED
    )
    assert told.attainment == 1.0
    assert told.gpu_hours == pytest.approx(16 * case.tuned_s / 3600)
    # A request that is too slow is late, however little of it the end has seen.
    targets = tuple(t.model_copy(update={"itl_s": 1e-4}) for t in case.targets)
    tight = replace(case, targets=targets)
    assert judge("static", fixed_settings(16, None), tight).held_out.attainment == {"all": 0.0}


class Wavering:
    """Orders another number of instances at every decision."""

    name = "wavering"

    def reset(self, scenario: Scenario, seed: int) -> None:
        pass

    def act(self, view: ClusterView) -> Command:
        return Command(targets={POOL: 2 + view.step % 2})


def test_after_the_end_the_fleet_stays_as_it_is(steady, tmp_path):
    words = (f"trace={steady}", "slo=ttft:300,itl:0.05", "policies=hpa", *FEW)
    part = case_of(tmp_path, *words, initial=2).whole()
    series = run(Wavering(), part, 0).series
    states = [f"{POOL}/{state}" for state in ("acquiring", "loading", "active")]
    held = series[states].sum(axis=1)
    after = (series["time_s"] > part.end_s + 1e-6).to_numpy()
    assert after.sum() * INTERVAL_S > 300
    assert held[after].nunique() == 1
    assert set(held[~after]) == {2, 3}
    hpa = make_policy("hpa", kv_target=0.3)
    assert Ending(hpa, 0.0).parameters == hpa.parameters


def test_what_cannot_be_awaited_is_late_and_said(tmp_path):
    frame = write_trace(tmp_path / "t.csv")
    frame["output_tokens"] = 2000
    frame.to_csv(tmp_path / "t.csv", index=False)
    words = (f"trace={tmp_path / 't.csv'}", "slo=ttft:80000,itl:9", "policies=hpa", *FEW)
    part = case_of(tmp_path, *words).whole()
    assert part.cut
    assert part.scenario.horizon_s - part.end_s == pytest.approx(MOST_AFTER_S, abs=2 * INTERVAL_S)
    assert not case_of(tmp_path, words[0], SLO, *words[2:]).whole().cut


@pytest.mark.parametrize("conversations", [False, True])
def test_a_search_sees_nothing_of_the_second_half(tmp_path, conversations):
    frame = write_trace(tmp_path / "a.csv")
    late = frame["arrival_time_s"] >= SPAN_S / 2
    if conversations:
        frame["conversation"] = np.arange(len(frame)) // 3
        frame.to_csv(tmp_path / "a.csv", index=False)
    frame.loc[late, "output_tokens"] = 10 * frame["output_tokens"][late] + 7
    frame.loc[late, "input_tokens"] = 3 * frame["input_tokens"][late]
    dropped = frame.index[late][5:900]  # the last row stays: it ends the trace
    frame.drop(dropped).to_csv(tmp_path / "b.csv", index=False)
    one, other = (
        case_of(tmp_path, f"trace={tmp_path / name}", SLO, "policies=hpa", *FEW)
        for name in ("a.csv", "b.csv")
    )
    assert len(one.whole().requests) > len(other.whole().requests)

    def columns(case: Case, part: Any) -> list[Any]:
        r = part.requests
        known = r.arrival_s < case.tuned_s
        return [
            getattr(r, name)[known]
            for name in (
                "arrival_ps", "slo_class", "input_tokens", "output_tokens", "predicted_output_tokens"
            )
        ]  # fmt: skip

    for load in (1.0, HEADROOM):
        a, b = one.tuning(load), other.tuning(load)
        assert len(a.requests) > 0
        assert a.scenario.horizon_s == b.scenario.horizon_s
        for x, y in zip(columns(one, a), columns(other, b), strict=True):
            np.testing.assert_array_equal(x, y)
        assert (a.requests.prefixes is not None) is conversations
        if a.requests.prefixes is not None and b.requests.prefixes is not None:
            for what in ("name", "first", "owner", "end"):
                x, y = (getattr(part.requests.prefixes, what) for part in (a, b))
                np.testing.assert_array_equal(x, y)
    # Nor does a policy that is judged, until the second half comes.
    for x, y in zip(columns(one, one.whole()), columns(other, other.whole()), strict=True):
        np.testing.assert_array_equal(x, y)


def test_outputs_of_the_second_half_are_predicted_from_the_first(tmp_path):
    frame = write_trace(tmp_path / "t.csv")
    short = frame["input_tokens"] < 1100
    first = frame["arrival_time_s"] < SPAN_S / 2
    frame["output_tokens"] = np.where(first, np.where(short, 100, 300), 900)
    frame.to_csv(tmp_path / "t.csv", index=False)
    part = case_of(tmp_path, f"trace={tmp_path / 't.csv'}", SLO, "policies=hpa", *FEW).whole()
    late = part.requests.arrival_s >= SPAN_S / 2
    inputs = part.requests.input_tokens[late]
    predicted = part.requests.predicted_output_tokens[late]
    assert set(part.requests.output_tokens[late]) == {900}
    assert (predicted[inputs < 1000] == 100).all()
    assert (predicted[inputs > 1200] == 300).all()


@pytest.mark.parametrize("half", ["in", "after"])
def test_a_class_that_a_half_hardly_has_is_refused(tmp_path, capsys, half):
    frame = write_trace(tmp_path / "t.csv")
    where = frame["arrival_time_s"] < SPAN_S / 2
    rows = frame.index[where if half == "in" else ~where]
    frame["slo_class"] = "main"
    others = frame.index.difference(rows)
    frame.loc[others[::2], "slo_class"] = "rare"
    frame.loc[rows[: LEAST_REQUESTS - 1], "slo_class"] = "rare"
    frame.to_csv(tmp_path / "t.csv", index=False)
    words = [f"trace={tmp_path / 't.csv'}", SLO, f"out={tmp_path / 'out'}", *FEW]
    assert main(words) == 2
    said = capsys.readouterr().err
    assert f"19 requests of class 'rare' {half} its first 450 s" in said
    frame.loc[rows[:LEAST_REQUESTS], "slo_class"] = "rare"
    frame.to_csv(tmp_path / "t.csv", index=False)
    case = ask([*words, "policies=hpa"]).case
    outcome = judge("static", fixed_settings(4, None), case).held_out
    assert keeps(outcome, case.targets)
    missing = outcome.model_copy(update={"attainment": {**outcome.attainment, "rare": None}})
    assert not keeps(missing, case.targets)


def test_the_page_shows_a_command_that_can_be_given_again(tmp_path):
    from experiments.desk.page import write_page

    folder = tmp_path / "my traces"
    folder.mkdir()
    write_trace(folder / "t.csv")
    words = [f"trace={folder / 't.csv'}", SLO, "policies=hpa:kv_target=0.5", "what_ifs=false", *FEW]
    answer = answer_of(tmp_path, *words)
    text = write_page(answer, tmp_path / "page.html").read_text(encoding="utf-8")
    shown = html.unescape(text.partition("Asked: <code>")[2].partition("</code>")[0])
    given = [*words, f"out={tmp_path / 'out'}"]
    assert shlex.split(shown) == ["llmscale", "advise", *given]


# ---- slips ----


def lines(
    path: Path, times: Sequence[float], head: str = "arrival_time_s,input_tokens,output_tokens"
) -> Path:
    """A trace with requests at these times."""
    path.write_text("\n".join([head, *(f"{t},100,10" for t in times)]) + "\n")
    return path


@pytest.mark.parametrize(
    "times, says",
    [
        ([], "no rows"),
        ([5.0], "spans 0 s with 1 requests: must be at least 600 s"),
        ([0.0, 200.0], "spans 200 s"),
        ([*range(300), 1000.0], "1 request after its first 500 s: must be at least 20 in each"),
        ([0.0, *range(800, 1000)], "1 request in its first 500 s"),
        ([0.0, 700.0, 300.0], "must not go backwards"),
        # Twenty minutes at half a request per second, in milliseconds.
        ([1000 * t for t in range(0, 1200, 2)], "are they milliseconds?"),
        ([1000 * t for t in range(0, 3600, 2)], "at most 30 days; are they milliseconds?"),
    ],
)
def test_traces_from_which_nothing_can_be_learned_are_refused(tmp_path, capsys, times, says):
    path = lines(tmp_path / "t.csv", times)
    assert main([f"trace={path}", SLO, f"out={tmp_path / 'out'}", "load_s=60"]) == 2
    said = capsys.readouterr().err
    assert says in said
    assert said.count("\n") == 1
    assert not (tmp_path / "out" / "answer.json").exists()


def test_a_longer_loading_time_takes_a_longer_trace(steady):
    trace = read_trace(steady)
    assert split(trace, 180.0) == (SPAN_S, SPAN_S / 2)
    with pytest.raises(Slip, match="must be at least 1600 s"):
        split(trace, 400.0)


@pytest.mark.parametrize(
    "word, says",
    [
        ("slo=", "lacks a value"),
        ("slo=ttft:1", "must be ttft:SECONDS,itl:SECONDS"),
        ("slo=ttft:1,itl:-1", "itl = '-1'"),
        ("slo=chat/ttft:1,itl:0.05", "no column slo_class"),
        ("llm=gpt-9", "gpt-9"),
        ("gpu=tpu", "tpu"),
        ("llm=deepseek-r1", "does not fit"),
        ("tp=3", "must be one of 1,2,4,8"),
        ("max_gpus=0", "max_gpus = '0'"),
        ("load_s=-1", "load_s = '-1'"),
        ("usd_per_gpu_hour=free", "usd_per_gpu_hour = 'free'"),
        ("attainment=1", "below 1"),
        ("policies=hpq", "did you mean hpa"),
        ("policies=static", "best fixed fleet is always searched"),
        ("policies=hpa,hpa", "given twice"),
        ("policies=static:each=3", "must be static:serving=N"),
        ("policies=static:serving=61", "must be 1 to 60"),
        ("policies=hpa:kv=1", "no parameter 'kv'"),
        ("policies=hpa:batch_limit=4096", "must be at most 2048"),
        ("policies=chiron", "cannot run on one pool"),
        ("trials=0", "trials = '0'"),
        ("what_ifs=maybe", "must be true or false"),
        ("format=xml", "format = 'xml'"),
        ("columns=arrival:ts", "input is missing"),
        ("columns=arrival:ts,input:a,output:b", "has no such column"),
        ("colour=red", "colour"),
    ],
)
def test_slips_are_told_in_a_line_before_anything_is_simulated(
    steady, tmp_path, capsys, word, says
):
    words = [f"trace={steady}", f"out={tmp_path / 'out'}", word]
    words += [] if word.startswith("slo") else [SLO]
    assert main(words) == 2
    said = capsys.readouterr().err
    assert says in said
    assert said.count("\n") == 1
    assert not (tmp_path / "out" / "cache").exists()


def test_no_trace_is_a_slip(tmp_path, capsys):
    assert main([SLO]) == 2
    assert "trace=FILE" in capsys.readouterr().err
    assert main([f"trace={tmp_path}", SLO, f"out={tmp_path / 'out'}"]) == 2
    assert "no file" in capsys.readouterr().err


@pytest.mark.parametrize(
    "value, says",
    [("1.7e12", "must be seconds"), ("soon", "ISO 8601"), ("", "row")],
)
def test_columns_with_another_content_are_named(tmp_path, capsys, value, says):
    path = tmp_path / "t.csv"
    path.write_text(f"ts,a,b\n0,10,10\n{value},10,10\n")
    words = [f"trace={path}", "columns=arrival:ts,input:a,output:b", SLO, f"out={tmp_path / 'out'}"]
    assert main(words) == 2
    said = capsys.readouterr().err
    assert "arrival:ts" in said
    assert says in said


def test_slo_of_classes():
    assert slo_of("ttft:1,itl:0.05") == {None: (1.0, 0.05)}
    assert slo_of("a/itl:0.1,ttft:2+b.c/ttft:3,itl:1") == {"a": (2.0, 0.1), "b.c": (3.0, 1.0)}
    for text in (
        "",
        "a/ttft:1,itl:1+ttft:1,itl:1",
        "a/ttft:1,itl:1+a/ttft:1,itl:1",
        "/ttft:1,itl:1",
    ):
        with pytest.raises(Slip, match="slo"):
            slo_of(text)


@pytest.mark.slow
def test_two_hours_of_three_shapes(tmp_path):
    for shape in ("steady", "daily", "bursty"):
        write_trace(tmp_path / "t.csv", shape, 7200.0, 10.0)
        words = [
            f"trace={tmp_path / 't.csv'}",
            SLO,
            "usd_per_gpu_hour=2.5",
            f"out={tmp_path / shape}",
        ]
        assert main(words) == 0
        answer = json.loads((tmp_path / shape / "answer.json").read_text())
        fixed = next(r for r in answer["ranking"] if r["policy"] == "static")
        assert fixed["keeps"]
        assert answer["ranking"][0]["keeps"]
        assert len(answer["ranking"]) == 11


def test_requests_longer_than_the_memory_are_told(steady, tmp_path):
    frame = pd.read_csv(steady)
    frame.loc[[5, 2000], "input_tokens"] = 900_000
    frame.to_csv(tmp_path / "long.csv", index=False)
    case = case_of(tmp_path, f"trace={tmp_path / 'long.csv'}", SLO, *FEW)
    trace = ask([f"trace={tmp_path / 'long.csv'}", SLO, *FEW, f"out={tmp_path / 'out'}"]).trace
    said = [line for line in rests_on(trace, case, 1, ()) if "longer than the KV memory" in line]
    assert len(said) == 1
    assert said[0].startswith("2 of them")
