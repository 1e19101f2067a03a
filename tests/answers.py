"""Answers of made-up numbers, of the shape that `llmscale advise` writes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.desk.answer import (
    Answer,
    Decision,
    Fixed,
    Outcome,
    Question,
    Ranked,
    Series,
    Target,
    WhatIf,
)
from llmscale_env import __version__

SETTINGS: dict[str, dict[str, Any]] = {
    "hpa": {"queue_target": 4.0, "kv_target": 0.35, "down_window_s": 120.0, "batch_limit": 128},
    "keda": {"queue_target": 6.5, "kv_target": 0.2, "batch_limit": 128},
    "static": {"each": 9, "batch_limit": 96},
    "twin": {},
    "kpa": {"target": 24.0},
    "ray-serve": {},
    "dynamo": {},
    "wva": {},
    "paced": {},
    "chiron": {},
    "wva-tokens": {},
    "llumnix": {},
}
"""Policies and settings of theirs, in the order of a made-up ranking."""

CLASSES = (
    Target(name="chat", ttft_s=1.0, itl_s=0.05, attainment=0.99),
    Target(name="code", ttft_s=2.0, itl_s=0.1, attainment=0.95),
    Target(name="batch", ttft_s=60.0, itl_s=0.5, attainment=0.9),
)
STEPS = 120
INTERVAL_S = 30.0


def made_answer(
    policies: int | Sequence[str] = 3,
    classes: int = 1,
    usd: float | None = 2.5,
    keeps: bool = True,
    what_ifs: bool = True,
    fixed: int | None = None,
    **question: Any,
) -> Answer:
    """An answer about an hour held out of two.

    Args:
        policies: how many of `SETTINGS`, or which.
        classes: how many of `CLASSES`.
        usd: price of a GPU-hour.
        keeps: whether the first half of the ranking reaches the target; else none does.
        what_ifs: whether there are some.
        fixed: instances of the fixed fleet that would have kept the targets; None: not told.
        question: fields of the question that are other than usual.
    """
    names = list(SETTINGS)[:policies] if isinstance(policies, int) else list(policies)
    targets = CLASSES[:classes]
    asked: dict[str, Any] = {
        "trace": "traces/monday.csv",
        "requests": 72_431,
        "span_s": 7200.0,
        "tuned_s": 3600.0,
        "llm": "llama-3.1-8b",
        "gpu": "h100-80gb",
        "tp": 1,
        "load_s": 180.0,
        "max_gpus": 60,
        "usd_per_gpu_hour": usd,
        "targets": targets,
        "words": ("advise", "trace=traces/monday.csv", "slo=ttft:1,itl:0.05"),
    }
    ranking = tuple(
        _ranked(name, k, targets, usd, keeps and k <= len(names) // 2)
        for k, name in enumerate(names)
    )
    groups = {
        "load": ("x0.5", "x1.5", "x2"),
        "loading": ("30 s", "360 s"),
        "gpu": ("a100-80gb",),
        "slo": ("half", "double"),
    }
    found = tuple(
        WhatIf(
            group=group,
            value=value,
            policy=ranked.policy,
            outcome=_outcome(targets, usd, 40.0 + 5 * k + 7 * j, late=0.004 * (k + 1) * (j + 1)),
            keeps=(k + 1) * (j + 1) <= 2,
        )
        for group, values in groups.items()
        for j, value in enumerate(values)
        for k, ranked in enumerate(ranking)
    )
    return Answer(
        version=__version__,
        question=Question.model_validate(asked | question),
        rests_on=(
            "Iteration times: measured by others on h100-80gb, composed by a roofline for this LLM.",
            "All 72,431 requests of the trace were simulated, in 2 distinct episodes.",
        ),
        winner=names[0],
        ranking=ranking,
        what_ifs=found if what_ifs else (),
        fixed=None if fixed is None else _fixed(fixed, usd, asked.get("tp", 1)),
    )


def _fixed(instances: int, usd: float | None, tp: int) -> Fixed:
    hours = float(instances * tp)
    return Fixed(
        instances=instances,
        gpus=instances * tp,
        batch_limit=None,
        gpu_hours=hours,
        usd=None if usd is None else usd * hours,
    )


def written(answer: Answer, path: Path) -> Path:
    """The answer as a file."""
    path.write_text(answer.model_dump_json(), encoding="utf-8")
    return path


def _ranked(name: str, k: int, targets: Sequence[Target], usd: float | None, keeps: bool) -> Ranked:
    settings = SETTINGS[name]
    late = 0.003 if keeps else 0.01 * (k + 2)
    spelled = "+".join(f"{key}={value}" for key, value in settings.items())
    return Ranked(
        policy=name,
        settings=settings,
        spelled=f"{name}:{spelled}" if spelled else name,
        tuned=_outcome(targets, usd, 8.0 + 0.4 * k, late),
        held_out=_outcome(targets, usd, 8.2 + 0.5 * k, late, static=name == "static"),
        keeps=keeps,
        needs="" if keeps else f"{2 + k} more GPUs at the peak, or loading in under 60 s.",
        series=_series(targets, k, late, static=name == "static"),
    )


def _outcome(
    targets: Sequence[Target], usd: float | None, hours: float, late: float, static: bool = False
) -> Outcome:
    shares = {t.name: max(0.0, 1 - late * (1 + 0.2 * k)) for k, t in enumerate(targets)}
    return Outcome(
        attainment=shares,
        gpu_hours=hours,
        usd=None if usd is None else usd * hours,
        scaling_actions=0 if static else 23,
        worst_five_minutes=max(0.0, 1 - 6 * late),
        ttft_p99_s={t.name: 0.6 * t.ttft_s for t in targets},
        itl_p99_s={t.name: 0.7 * t.itl_s for t in targets},
        mean_gpus=hours,
        peak_gpus=9 if static else 14,
    )


def _series(targets: Sequence[Target], k: int, late: float, static: bool) -> Series:
    load = [10 + 4 * math.sin(i / 15) + (9 if 60 <= i < 70 else 0) for i in range(STEPS)]
    wanted = [9] * STEPS if static else [round(0.7 * x + 0.3 * k) for x in load]
    ready = [wanted[max(0, i - 6)] for i in range(STEPS)]
    loading = [max(0, w - r) for w, r in zip(wanted, ready, strict=True)]
    waiting = [max(0, round(9 * x - 11 * r)) for x, r in zip(load, ready, strict=True)]
    decisions = [
        Decision(
            time_s=3600 + INTERVAL_S * i,
            instances=wanted[i],
            reason=f"queue {waiting[i]}, kv {0.1 * load[i]:.3g}: {wanted[i - 1]} -> {wanted[i]}",
        )
        for i in range(1, STEPS)
        if wanted[i] != wanted[i - 1]
    ]
    on_time = {
        t.name: tuple(
            None if i % 50 == 17 else max(0.0, 1 - late - waiting[i] / 150 / (1 + c))
            for i in range(STEPS)
        )
        for c, t in enumerate(targets)
    }
    return Series(
        start_s=3600,
        interval_s=INTERVAL_S,
        arrivals_per_s=tuple(load),
        ready=tuple(ready),
        loading=tuple(loading),
        waiting=tuple(waiting),
        running=tuple(min(round(9 * x), 11 * r) for x, r in zip(load, ready, strict=True)),
        on_time=on_time,
        decisions=tuple(decisions),
    )
