"""An answer as text, as CSV and as JSON, and the sentences about what it rests on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from baselines.practice.seen import kv_capacity
from experiments.desk.advising.case import Case
from experiments.desk.advising.search import HEADROOM
from experiments.desk.answer import Answer, Outcome, WhatIf
from experiments.desk.page import (
    as_sentence,
    cost_text,
    fixed_sentence,
    idle_sentence,
    next_command,
    on_time,
    percent,
    unable_sentence,
)
from experiments.output import text_table, write_csv
from llmscale_env._writing import write_text
from llmscale_env.cluster.cards import llm_card
from llmscale_env.cluster.iteration_time import iteration_time_model
from llmscale_env.scenarios.basis import times_told
from llmscale_env.workload.readers import Trace
from llmscale_env.workload.requests import PS_PER_S

FILES = ("answer.json", "ranking.csv", "what_ifs.csv", "series.csv", "page.html")
"""That an answer writes to its folder, or takes away from there."""


UNCALIBRATED = {
    "composed": (
        "They are a sum of kernels, and the percentages are the fit's error against those kernels. Sampling "
        "and the output layer are left out, and scheduling counts only where it outlasts the GPU. So a real "
        "server is slower: 45 ms per decode iteration where kernels sum to 24 ms (Llama 2 70B on 8 A100)."
    ),
    "roofline": (
        "They are a roofline of the cards, without the engine's own time: a real server is mostly slower."
    ),
}
"""What is to be known of iteration times that were not fitted to a server, by their kind."""

SERVERS = (
    "Of three real servers, times by the cards alone were 13 to 14 % off per token and 4 to 12 % off for the "
    "first token (medians, docs/calibrate.md). Calibrate with your own server: llmscale calibrate."
)


def rests_on(trace: Trace, case: Case, fleet: int, changed: Sequence[WhatIf]) -> Iterator[str]:
    """Sentences: what an answer rests on.

    Args:
        trace: as it was read.
        case: that the policies were judged on.
        fleet: instances of the fixed fleet.
        changed: what-ifs.
    """
    whole = case.whole()
    for line in times_told(whole.scenario):
        yield f"{line[0].upper()}{line[1:]}."
    model = iteration_time_model(case.llm, case.gpu, case.tp, data=case.iteration_times)
    if model.kind in UNCALIBRATED:
        yield UNCALIBRATED[model.kind]
        yield SERVERS
    if any(w.group == "gpu" for w in changed):
        yield (
            "GPU types are compared by rooflines of the cards, the one asked for too, since not all of "
            "them were measured."
        )
    longest, total = int(trace.input_tokens.max()), trace.input_tokens + trace.output_tokens
    limit = whole.scenario.fleet.pools[0].batch_limit
    if beyond := model.beyond(batch=limit, mean_context=int(total.max()), prefill_tokens=longest):
        yield f"Iteration times are extrapolated: {'; '.join(beyond)}."
    most = llm_card(case.llm).context_limit
    if most and (above := int((total > most).sum())):
        yield (
            f"{above:,} requests have more than the {most:,} tokens of prompt and output that {case.llm} is "
            "made for. A server would refuse or cut them; here they are served."
        )
    dropped = trace.dropped_zero_input + trace.dropped_zero_output
    left = f"; {dropped:,} rows without prompt or answer were left out" if dropped else ""
    yield f"All {len(trace):,} requests of the trace were simulated{left}."
    room = kv_capacity(whole.scenario, 0)
    too_long = int((total > room).sum())
    if too_long:
        yield (
            f"{too_long:,} of them are longer than the KV memory of an instance ({room:,} tokens): no fleet "
            "serves these, and they count as late."
        )
    arrival_s = trace.arrival_ps / PS_PER_S
    first = int((arrival_s < case.tuned_s).sum())
    held_s = case.span_s - case.tuned_s
    rates = first / case.tuned_s, (len(trace) - first) / held_s
    yield (
        f"Settings come from the first {case.tuned_s:,.0f} s ({rates[0]:.3g} requests/s), with "
        f"{HEADROOM:g} times its requests; the verdict from the {held_s:,.0f} s after it ({rates[1]:.3g} "
        "requests/s)."
    )
    yield (
        f"The verdict is one episode that happened once, {_stretches(held_s)} of five minutes. "
        "Another day may bring another load: the answer does not cover it."
    )
    yield (
        f"Every policy begins with the {'instance' if fleet == 1 else f'{fleet} instances'} of the "
        "fixed fleet, so there is no cold start, "
        "and the held-out part goes on from the fleet and the queues of the first."
    )
    after_s = whole.scenario.horizon_s - whole.end_s
    yield (
        f"Every request is judged: the last ones are followed for {after_s:,.0f} s more, in which nothing "
        "arrives, the fleet stays as it is, and no GPU-hours count."
    )
    if whole.cut:
        yield "Some may be in time even later than that; they count as late if they are not done by then."
    yield (
        "Outputs are predicted, for policies that ask, by the mean of the first half's requests with such "
        "prompts."
    )
    if trace.llm is not None and len(trace.llm.names) > 1:
        yield (
            f"The trace names {len(trace.llm.names)} LLMs; all requests were taken for {case.llm}'s."
        )
    if trace.prefixes is None:
        yield "The trace does not say which prompts begin alike, so the prefix cache finds nothing."


def _stretches(held_s: float) -> str:
    count = max(1, round(held_s / 300))
    return f"{count} stretch" if count == 1 else f"{count} stretches"


def ranking_text(answer: Answer) -> str:
    """The ranking as a table."""
    names = [target.name for target in answer.question.targets]
    priced = answer.question.usd_per_gpu_hour is not None
    head = ["", "policy", *map(on_time, names), "worst 5 min", "GPU-h"]
    head += ["USD"] if priced else []
    head += ["GPUs mean", "peak", "actions", "runs on"]
    rows = []
    for place, ranked in enumerate(answer.ranking, 1):
        o = ranked.held_out
        row = [f"{place}" if ranked.keeps else "-", ranked.policy]
        row += [percent(o.attainment[name]) for name in names]
        row += [percent(o.worst_five_minutes), f"{o.gpu_hours:.2f}"]
        row += [f"{o.usd:.2f}" if o.usd is not None else "-"] if priced else []
        row += [f"{o.mean_gpus:.1f}", str(o.peak_gpus), str(o.scaling_actions), ranked.runs_on]
        rows.append(row)
    lines = [text_table(head, rows)]
    if not all(ranked.keeps for ranked in answer.ranking):
        lines += ["-: misses a target"]
    lines += ["", "Settings, as policies= takes them:"]
    lines += [f"  {ranked.spelled}" for ranked in answer.ranking]
    lines += [f"{r.policy} misses its target: {r.needs}" for r in answer.ranking if r.needs]
    return "\n".join(lines)


def what_ifs_text(answer: Answer) -> str:
    """The what-ifs as a table: a line per change, the policies beside each other."""
    policies = list(dict.fromkeys(w.policy for w in answer.what_ifs))
    changes = dict.fromkeys((w.group, w.value) for w in answer.what_ifs)
    found = {(w.group, w.value, w.policy): w for w in answer.what_ifs}
    rows = []
    for group, value in changes:
        row = [group, value]
        for policy in policies:
            one = found[group, value, policy]
            worst = min((x for x in one.outcome.attainment.values() if x is not None), default=None)
            mark = "" if one.keeps else " !"
            row.append(f"{percent(worst)}{mark}, {one.outcome.gpu_hours:.2f} GPU-h")
        rows.append(row)
    note = "Worst class on time, GPU-hours; ! misses its target. Settings as they were tuned."
    if any(group == "gpu" for group, _ in changes):
        note += "\ngpu: by rooflines of the cards, which compare with each other only."
    return f"{text_table(['what if', '', *policies], rows)}\n{note}"


def verdict_text(answer: Answer) -> str:
    """The answer in a few sentences, and the command that comes next."""
    first, hindsight = answer.ranking[0], fixed_sentence(answer)
    if first.keeps:
        said = [_best(answer), idle_sentence(first), hindsight, unable_sentence(answer)]
    elif hindsight:
        said = [
            "No settings tuned on the first half hold.",
            hindsight,
            f"Nearest is {first.policy}. {as_sentence(first.needs)}",
        ]
    else:
        said = [f"No policy keeps every target. Nearest is {first.policy}."]
        said += [as_sentence(first.needs)]
    text = " ".join(filter(None, said))
    command = next_command(answer)
    return f"{text}\nNext, with your namespace and deployment: {command}" if command else text


def _best(answer: Answer) -> str:
    first = answer.ranking[0]
    o = first.held_out
    text = f"Best: {first.spelled}: {cost_text(o.gpu_hours, o.usd)} for the held-out part"
    fixed = next((r for r in answer.ranking if r.policy == "static"), None)
    if fixed is None or fixed is first:
        scaling = [r for r in answer.ranking if r.keeps and r.policy != "static"]
        if scaling and not any(r.held_out.gpu_hours < o.gpu_hours for r in scaling):
            text += "; no autoscaler that keeps the targets needs fewer"
        return f"{text}."
    kept = "keeps the target" if fixed.keeps else "misses the target"
    return (
        f"{text}; the fixed fleet tuned like it, {fixed.held_out.peak_gpus} GPUs, {kept} with "
        f"{fixed.held_out.gpu_hours:.2f}."
    )


def write(answer: Answer, folder: Path) -> list[Path]:
    """answer.json, ranking.csv, series.csv, and what_ifs.csv where there are any."""
    names = [target.name for target in answer.question.targets]
    paths = [write_text(folder / "answer.json", answer.model_dump_json(indent=1) + "\n")]
    head = ["place", "policy", "spelled", "keeps", *_outcome_head(names, "held_out_")]
    head += [*_outcome_head(names, "tuned_"), "needs", "runs_on"]
    rows: list[list[Any]] = []
    for place, r in enumerate(answer.ranking, 1):
        rows.append([place, r.policy, r.spelled, r.keeps, *_outcome_row(r.held_out, names)])
        rows[-1] += [*_outcome_row(r.tuned, names), r.needs, r.runs_on]
    paths.append(write_csv(folder / "ranking.csv", head, rows))
    if answer.what_ifs:
        head = ["group", "value", "policy", "keeps", *_outcome_head(names, "")]
        rows = [
            [w.group, w.value, w.policy, w.keeps, *_outcome_row(w.outcome, names)]
            for w in answer.what_ifs
        ]
        paths.append(write_csv(folder / "what_ifs.csv", head, rows))
    else:
        (folder / "what_ifs.csv").unlink(missing_ok=True)  # of another answer
    paths.append(write_csv(folder / "series.csv", *_series_table(answer, names)))
    return paths


_NUMBERS = ("gpu_hours", "usd", "scaling_actions", "worst_five_minutes", "mean_gpus", "peak_gpus")
_BY_CLASS = ("attainment", "ttft_p99_s", "itl_p99_s")


def _outcome_head(names: Sequence[str], prefix: str) -> list[str]:
    classes = [f"{prefix}{what}/{name}" for what in _BY_CLASS for name in names]
    return [*classes, *(f"{prefix}{what}" for what in _NUMBERS)]


def _outcome_row(outcome: Outcome, names: Sequence[str]) -> list[Any]:
    classes = [getattr(outcome, what)[name] for what in _BY_CLASS for name in names]
    return [*classes, *(getattr(outcome, what) for what in _NUMBERS)]


def _series_table(answer: Answer, names: Sequence[str]) -> tuple[list[str], list[list[Any]]]:
    head = ["policy", "time_s", "arrivals_per_s", "ready", "loading", "waiting", "running"]
    rows: list[list[Any]] = []
    for ranked in answer.ranking:
        s = ranked.series
        for k in range(len(s.ready)):
            now = s.start_s + (k + 1) * s.interval_s
            seen = [s.arrivals_per_s[k], s.ready[k], s.loading[k], s.waiting[k], s.running[k]]
            rows.append([ranked.policy, now, *seen, *(s.on_time[name][k] for name in names)])
    return [*head, *(f"on_time/{name}" for name in names)], rows
