"""One HTML file of an answer: it stands alone, loads nothing from a network, and prints.

The ranking, what would happen if, and for each policy its fleet, its queue and its attainment over time with
every decision and the reason for it. Charts are Plotly's; a policy's is drawn when its part is opened.
"""

from __future__ import annotations

import html
import math
import shlex
from collections.abc import Callable, Sequence
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any

from experiments.desk.answer import Answer, Outcome, Ranked, Target
from llmscale_env._cli import needs
from llmscale_env._writing import write_text

READY, LOADING, MARK, GRID, INK = "#3b6ea5", "#e69f00", "#222831", "#e6e9ee", "#333b46"
CLASS_COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#8c6d1f")
"""Told from each other by those who see few colours (Okabe and Ito's palette)."""

MOST_MARKS = 400
"""Decisions with a marker in a chart; the table has all of them."""

GROUPS = {
    "load": ("Load", "So many times the requests: some are repeated, or left out, at random."),
    "loading": ("Loading time", "From an order of an instance until it serves."),
    "gpu": (
        "GPU type",
        "The same policy and settings on each card, with times by the cards' rooflines: they compare "
        "with each other, not with the rest of this page.",
    ),
    "slo": ("Targets", "Both latencies of every class are tighter or looser."),
}
"""Title and meaning of what-ifs; another group goes by its own name."""

NOTHING_YET = "nothing yet"
"""What runs a policy that no real cluster can run."""

_UNKNOWN = "\N{EN DASH}"
_NBSP = "\N{NO-BREAK SPACE}"


def write_page(answer: Answer, path: Path) -> Path:
    """Write an answer as one HTML file (5 MB, most of it Plotly's own code).

    Args:
        answer: what `llmscale advise` found out.
        path: of the file; its folder is made.

    Raises:
        ModuleNotFoundError: jinja2 or plotly is not installed.
        OSError: the file cannot be written.
    """
    needs("jinja2", "plotly")
    return write_text(path, _rendered(answer))


def _rendered(answer: Answer) -> str:
    from jinja2 import Environment, StrictUndefined
    from plotly.offline import get_plotlyjs

    template = resources.files("experiments.desk").joinpath("page.html").read_text("utf-8")
    # Whatever a user wrote (a path, a class's name, a policy's reason) is escaped by the template.
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    texts = {"percent": percent, "goal": goal, "seconds": seconds, "span": span_text}
    environment.filters |= {name: partial(_unbroken, text) for name, text in texts.items()}
    environment.filters |= {"dollars": dollars, "hours": lambda value: f"{value:,.1f}"}
    environment.filters["on_time"] = on_time
    environment.filters["command"] = lambda words: shlex.join(("llmscale", *words))
    targets = answer.question.targets
    return environment.from_string(template).render(
        answer=answer,
        question=answer.question,
        winner=answer.of(answer.winner),
        priced=answer.question.usd_per_gpu_hour is not None,
        nbsp=_NBSP,
        sentence=winning_sentence(answer).replace(" %", f"{_NBSP}%"),
        next_command=next_command(answer),
        told_runs=any(ranked.runs_on for ranked in answer.ranking),
        most_hours=max(ranked.held_out.gpu_hours for ranked in answer.ranking) or 1.0,
        what_ifs=_what_ifs(answer),
        overview=_overview(answer),
        charts=[_chart(ranked, targets) for ranked in answer.ranking],
        decisions=[_decisions(ranked) for ranked in answer.ranking],
        plotly=get_plotlyjs(),
    )


def _unbroken(text: Callable[[Any], str], value: Any) -> str:
    """A number and its unit, which no end of a line parts."""
    return text(value).replace(" ", _NBSP)


def percent(share: float | None) -> str:
    """A share in percent with two digits, never rounded up: 100 % means all of them."""
    return _UNKNOWN if share is None else f"{math.floor(1e4 * share + 1e-6) / 100:.2f} %"


def on_time(name: str) -> str:
    """What a share of a class is called; a trace without classes has one that is called "all"."""
    return "share on time" if name == "all" else f"{name} on time"


def goal(share: float) -> str:
    """A target in percent, as it was given."""
    return f"{100 * share:.6g} %"


def span_text(value_s: float) -> str:
    """A length of time in the unit that suits it."""
    if value_s < 120:
        return f"{value_s:.3g} s"
    minutes = round(value_s / 60)
    return f"{minutes} minutes" if minutes < 120 else f"{value_s / 3600:.3g} hours"


def dollars(usd: float | None) -> str:
    """A price; cents below 100 dollars."""
    return _UNKNOWN if usd is None else f"${usd:,.2f}" if usd < 100 else f"${usd:,.0f}"


def seconds(value: float | None) -> str:
    """A latency with three digits, in ms below a second."""
    if value is None:
        return _UNKNOWN
    return f"{1e3 * value:.3g} ms" if value < 1 else f"{value:.3g} s"


def time_text(value_s: float) -> str:
    """A time since the start of the trace, as h:mm:ss."""
    minutes, rest = divmod(round(value_s), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


def lowest(outcome: Outcome, targets: Sequence[Target]) -> tuple[Target, float] | None:
    """The class furthest below its target (or least above it) and its attainment; None without requests."""
    found = [(t, a) for t in targets if (a := outcome.attainment.get(t.name)) is not None]
    return min(found, key=lambda pair: pair[1] - pair[0].attainment, default=None)


def gpus_text(count: int) -> str:
    """So many GPUs."""
    return f"{count:,} GPU" if count == 1 else f"{count:,} GPUs"


def cost_text(gpu_hours: float, usd: float | None) -> str:
    """GPU-hours, and dollars where there is a price."""
    hours = f"{gpu_hours:,.2f} GPU-hours"
    return hours if usd is None else f"{hours}, {dollars(usd)}"


def as_sentence(text: str) -> str:
    """A text with a capital at its start and a full stop at its end."""
    text = text[:1].upper() + text[1:]
    return text if not text or text.endswith((".", "!", "?")) else f"{text}."


def fixed_sentence(answer: Answer) -> str:
    """What a fixed fleet takes beside the winner, or in place of policies that miss; "": not known."""
    fixed, winner = answer.fixed, answer.of(answer.winner)
    if fixed is None:
        return ""
    gpus, cost = gpus_text(fixed.gpus), cost_text(fixed.gpu_hours, fixed.usd)
    if not winner.keeps:
        most = answer.question.max_gpus
        beyond = f", but max_gpus is {most}" if fixed.gpus > most else ""
        return f"A fixed fleet of {gpus} would have{beyond}: {cost}."
    if winner.policy == "static" and winner.held_out.gpu_hours <= fixed.gpu_hours + 1e-6:
        return "With hindsight, no smaller fixed fleet would have kept the targets."
    return f"With hindsight, a fixed fleet of {gpus} would have done: {cost}."


def idle_sentence(ranked: Ranked) -> str:
    """That an autoscaler took no action, and so is a fixed fleet; "" otherwise."""
    outcome = ranked.held_out
    if ranked.policy == "static" or outcome.scaling_actions:
        return ""
    fleet = f"a fixed fleet of {gpus_text(outcome.peak_gpus)}"
    return f"The policy took no action on the held-out part; {fleet} costs the same."


def unable_sentence(answer: Answer) -> str:
    """That no real cluster can run the winner, and what can be run in its place; "" otherwise."""
    winner, able = answer.of(answer.winner), _deployable(answer)
    if not winner.keeps or winner.runs_on != NOTHING_YET:
        return ""
    return f"No real cluster tells what {winner.policy} needs; " + (
        f"{able.policy} is the best that can run: "
        f"{cost_text(able.held_out.gpu_hours, able.held_out.usd)}."
        if able
        else "nor what any other that keeps the targets does."
    )


def _deployable(answer: Answer) -> Ranked | None:
    """The best policy that keeps the targets and that a real cluster can run."""
    able = (r for r in answer.ranking if r.keeps and r.runs_on != NOTHING_YET)
    return next(able, None)


def next_command(answer: Answer) -> str:
    """The command line that writes what runs the answer; "": nothing of it can be run."""
    given = [w.removeprefix("out=") for w in answer.question.words if w.startswith("out=")]
    path = Path(given[-1] if given else "results/advise") / "answer.json"
    words = [f"answer={path}", "namespace=llm", "deployment=vllm", "out=deploy"]
    if answer.of(answer.winner).keeps:
        able = _deployable(answer)
        if able is None:
            return ""
        words += [f"policy={able.policy}"] if able.policy != answer.winner else []
    elif answer.affordable is not None:
        words += ["policy=static", f"instances={answer.affordable.instances}"]
    else:
        return ""
    return shlex.join(("llmscale", "deploy", *words))


def winning_sentence(answer: Answer) -> str:
    """What the answer comes to: GPUs, GPU-hours, dollars and attainment of the winner."""
    question, winner = answer.question, answer.of(answer.winner)
    outcome = winner.held_out
    gpus = gpus_text(outcome.peak_gpus)
    if round(outcome.mean_gpus, 1) != outcome.peak_gpus:
        gpus = f"{outcome.mean_gpus:,.1f} GPUs on average and {outcome.peak_gpus:,} at the peak"
    cost = cost_text(outcome.gpu_hours, outcome.usd)
    several = len(question.targets) > 1
    kept = ", ".join(
        f"{percent(outcome.attainment.get(t.name))} of {t.name if several else 'the requests'} "
        f"(target {goal(t.attainment)})"
        for t in question.targets
    )
    part = span_text(question.span_s - question.tuned_s)
    fixed = fixed_sentence(answer)
    if winner.keeps:
        said = f"{winner.policy} serves the {part} held out with {gpus} ({cost}). On time: {kept}."
        more = (idle_sentence(winner), fixed, unable_sentence(answer))
        return " ".join(filter(None, (said, *more)))
    nearest = f"in the {part} held out is {winner.policy}, with {gpus} ({cost}). On time: {kept}."
    if fixed:
        return f"No settings tuned on the first half hold. {fixed} Nearest {nearest}"
    return f"No policy reaches the target. Nearest {nearest} {as_sentence(winner.needs)}"


def _what_ifs(answer: Answer) -> list[dict[str, Any]]:
    """A table for each group: a row for each policy, a column for each value, mostly one as asked."""
    tables: list[dict[str, Any]] = []
    for group in dict.fromkeys(what_if.group for what_if in answer.what_ifs):
        mine = [what_if for what_if in answer.what_ifs if what_if.group == group]
        values = list(dict.fromkeys(what_if.value for what_if in mine))
        cells: dict[tuple[str, str], Any] = {
            (w.policy, w.value): _cell(w.outcome, w.keeps, answer) for w in mine
        }
        names = [r.policy for r in answer.ranking if any(w.policy == r.policy for w in mine)]
        title, meaning = GROUPS.get(group, (group, ""))
        # Where a value is what was asked for, with other iteration times, nothing stands beside it.
        beside = answer.question.gpu not in values
        rows = []
        for name in names:
            asked = answer.of(name)
            row = [_cell(asked.held_out, asked.keeps, answer)] if beside else []
            rows.append((name, row + [cells.get((name, value)) for value in values]))
        head = ["as asked", *values] if beside else values
        tables.append({"title": title, "meaning": meaning, "head": head, "rows": rows})
    return tables


def _cell(outcome: Outcome, keeps: bool, answer: Answer) -> dict[str, Any]:
    worst = lowest(outcome, answer.question.targets)
    return {
        "keeps": keeps,
        "share": _unbroken(percent, worst[1] if worst else None),
        "name": worst[0].name if worst and len(answer.question.targets) > 1 else "",
        "hours": f"{outcome.gpu_hours:,.1f} GPU-h",
        "usd": "" if outcome.usd is None else dollars(outcome.usd),
    }


def _layout(height: int, **more: Any) -> dict[str, Any]:
    font = {"family": "system-ui, sans-serif", "size": 12, "color": INK}
    return {
        "template": "none",
        "height": height,
        "font": font,
        "paper_bgcolor": "white",
        "plot_bgcolor": "white",
        "hoverlabel": {"align": "left", "bgcolor": "white", "font": font},
        **more,
    }


_AXIS = {"gridcolor": GRID, "zeroline": False, "linecolor": "#aab2bd", "showline": True}


def _json(data: Sequence[dict[str, Any]], layout: dict[str, Any]) -> dict[str, Any]:
    """A figure as plain values, checked by Plotly: a misspelt property is an error here, not a blank page."""
    from plotly.graph_objects import Figure

    return Figure(data=data, layout=layout).to_plotly_json()


def _overview(answer: Answer) -> dict[str, Any]:
    """What is late, as a multiple of what the target allows, against GPU-hours."""
    points = []
    for ranked in answer.ranking:
        worst = lowest(ranked.held_out, answer.question.targets)
        if worst is None:
            continue
        target, share = worst
        # A target of 100 % allows nothing late, and a policy may have nothing late.
        budget = max(1 - target.attainment, 1e-4)
        points.append((ranked, max((1 - share) / budget, 0.01), share, target))
    points.sort(key=lambda point: point[0].held_out.gpu_hours)
    shown = [
        {
            "type": "scatter",
            "mode": "markers+text",
            "x": [r.held_out.gpu_hours for r, *_ in mine],
            "y": [late for _, late, *_ in mine],
            "text": _labels([(r.policy, r.held_out.gpu_hours, late) for r, late, *_ in mine]),
            "textposition": [("top center", "bottom center")[k % 2] for k in range(len(mine))],
            "cliponaxis": False,
            "marker": {
                "size": 11,
                "color": READY if keeps else "white",
                "line": {"width": 2, "color": READY if keeps else CLASS_COLORS[1]},
            },
            "name": "keeps every target" if keeps else "misses a target",
            "hovertext": [
                f"<b>{html.escape(r.policy)}</b><br>{r.held_out.gpu_hours:,.1f} GPU-hours<br>"
                f"{html.escape(t.name)}: {percent(share)} on time, target {goal(t.attainment)}"
                for r, _, share, t in mine
            ],
            "hoverinfo": "text",
        }
        for keeps in (True, False)
        if (mine := [point for point in points if point[0].keeps == keeps])
    ]
    lates = [late for _, late, *_ in points] or [1.0]
    low, high = min(0.3, *lates), max(3.0, *lates)
    ticks = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 1000, 10000)
    hours = [point[0].held_out.gpu_hours for point in points] or [0.0, 1.0]
    layout = _layout(
        360,
        margin={"l": 70, "r": 20, "t": 34, "b": 48},
        xaxis={
            **_AXIS,
            "title": {"text": "GPU-hours, held-out part"},
            "range": [0.85 * min(hours), 1.08 * max(hours) or 1.0],
        },
        yaxis={
            **_AXIS,
            "type": "log",
            "range": [math.log10(low) - 0.25, math.log10(high) + 0.25],
            "tickvals": ticks,
            "ticktext": [f"{v:g}\N{MULTIPLICATION SIGN}" for v in ticks],
            "title": {"text": "late / allowed to be late"},
        },
        legend={"orientation": "h", "y": 1.12, "x": 0},
        shapes=[
            {
                "type": "line",
                "xref": "paper",
                "x0": 0,
                "x1": 1,
                "y0": 1,
                "y1": 1,
                "line": {"dash": "dash", "width": 1, "color": INK},
            }
        ],
    )
    return _json(shown, layout)


def _labels(points: Sequence[tuple[str, float, float]]) -> list[str]:
    """Labels of (policy, GPU-hours, what is late): points that lie on each other have one."""
    hours = [x for _, x, _ in points]
    near = 0.02 * max(max(hours) - min(hours), 0.2 * max(hours), 1e-9)
    labels, heads = [""] * len(points), list[int]()
    behind: dict[int, list[str]] = {}
    for k, (policy, x, late) in enumerate(points):
        for head in heads:
            _, other_x, other = points[head]
            if abs(x - other_x) <= near and abs(math.log10(late / other)) < 0.25:
                behind[head].append(policy)
                break
        else:
            heads.append(k)
            behind[k] = []
    for head in heads:
        first, others = points[head][0], behind[head]
        more = (
            f", {others[0]}" if len(others) == 1 else f" + {len(others)} others" if others else ""
        )
        labels[head] = html.escape(first + more)
    return labels


def _chart(ranked: Ranked, targets: Sequence[Target]) -> dict[str, Any]:
    """Arrivals, fleet, requests and attainment of a policy, one above the other on one axis of time."""
    series = ranked.series
    scale, unit = (60.0, "minutes") if _end_s(ranked) < 3 * 3600 else (3600.0, "hours")
    # A value stands for the interval before it ends, so steps go back from its end.
    times = range(1, len(series.arrivals_per_s) + 1)
    ends = [(series.start_s + series.interval_s * k) / scale for k in (*times[:1], *times)]
    ends[:1] = [series.start_s / scale] * len(times[:1])
    clock = [time_text(end * scale) for end in ends]

    def line(y: Sequence[Any], name: str, panel: int, color: str, **more: Any) -> dict[str, Any]:
        return {
            "type": "scatter",
            "mode": "lines",
            "x": ends,
            "y": [*y[:1], *y],
            "name": html.escape(name),
            "xaxis": "x",
            "yaxis": f"y{panel}",
            "legend": f"legend{panel}",
            "line": {"shape": "vh", "width": 1.5, "color": color},
            "customdata": clock,
            "hovertemplate": f"%{{customdata}}<br>{html.escape(name)}: %{{y}}<extra></extra>",
            **more,
        }

    stacked = {"stackgroup": "fleet", "line": {"shape": "vh", "width": 0}}
    data = [
        line(series.arrivals_per_s, "arrivals", 1, "#5c6b7a", fill="tozeroy", fillcolor="#e3e8ee"),
        line(series.ready, "ready", 2, READY, **stacked, fillcolor=READY),
        line(series.loading, "loading", 2, LOADING, **stacked, fillcolor=LOADING),
        *_marks(ranked, scale),
        line(series.running, "running", 3, READY),
        line(series.waiting, "waiting", 3, CLASS_COLORS[1]),
    ]
    data[0]["hovertemplate"] = "%{customdata}<br>%{y:.3g} requests/s<extra></extra>"
    for k, target in enumerate(targets):
        color = CLASS_COLORS[k % len(CLASS_COLORS)]
        shares = [
            None if share is None else 100 * share
            for share in series.on_time.get(target.name, [None] * len(times))
        ]
        name = html.escape(target.name)
        told = f"%{{customdata}}<br>{name}: %{{y:.2f}} % on time<extra></extra>"
        # With markers, since a value between two intervals without arrivals has no line.
        data.append(
            line(shares, target.name, 4, color, mode="lines+markers", hovertemplate=told)
            | {"marker": {"size": 3, "color": color}}
        )
    goals = {t.attainment for t in targets}
    shapes = [
        {
            "type": "line",
            "xref": "paper",
            "x0": 0,
            "x1": 1,
            "yref": "y4",
            "y0": 100 * t.attainment,
            "y1": 100 * t.attainment,
            "line": {
                "dash": "dash",
                "width": 1,
                "color": INK if len(goals) == 1 else CLASS_COLORS[k % len(CLASS_COLORS)],
            },
        }
        for k, t in enumerate(targets)
    ]
    panels = ("arrivals/s", "instances", "requests", "on time, %")
    heights = ((0.86, 1.0), (0.57, 0.80), (0.285, 0.515), (0.0, 0.23))
    axes = {}
    for k, (title, domain) in enumerate(zip(panels, heights, strict=True), start=1):
        axes[f"yaxis{k}"] = {
            **_AXIS,
            "title": {"text": title},
            "domain": domain,
            "rangemode": "tozero",
            "nticks": 5,
            "automargin": False,
            "fixedrange": True,
        }
        axes[f"legend{k}"] = {
            "orientation": "h",
            "x": 1,
            "xanchor": "right",
            "y": domain[1],
            "yanchor": "bottom",
            "bgcolor": "rgba(255,255,255,0)",
            "traceorder": "normal",
            "font": {"size": 11},
        }
    axes["yaxis4"] |= {"range": [-3, 103], "rangemode": "normal"}
    xaxis = {
        **_AXIS,
        "anchor": "y4",
        "title": {"text": f"{unit} since the start of the trace"},
        "range": [series.start_s / scale, _end_s(ranked) / scale],
        "showspikes": True,
        "spikemode": "across",
        "spikethickness": 1,
        "spikedash": "dot",
        "spikecolor": "#8892a0",
    }
    margin = {"l": 70, "r": 20, "t": 44, "b": 48}
    layout = _layout(640, margin=margin, xaxis=xaxis, shapes=shapes, showlegend=True, **axes)
    return _json(data, layout)


def _end_s(ranked: Ranked) -> float:
    series = ranked.series
    return series.start_s + series.interval_s * max(1, len(series.arrivals_per_s))


def _steps(ranked: Ranked) -> list[int]:
    """By how many instances each decision changed the fleet."""
    series = ranked.series
    before = series.ready[0] + series.loading[0] if series.ready else 0
    counts = [decision.instances for decision in series.decisions]
    return [new - old for old, new in zip([before, *counts], counts, strict=False)]


def _marks(ranked: Ranked, scale: float) -> list[dict[str, Any]]:
    """A triangle for each decision, up or down, with its reason."""
    every = list(zip(ranked.series.decisions, _steps(ranked), strict=True))
    shown = every[:: 1 + (len(every) - 1) // MOST_MARKS] if every else []
    if not shown:
        return []
    return [
        {
            "type": "scatter",
            "mode": "markers",
            "x": [decision.time_s / scale for decision, _ in shown],
            "y": [decision.instances for decision, _ in shown],
            "name": "decision",
            "xaxis": "x",
            "yaxis": "y2",
            "legend": "legend2",
            "marker": {
                "symbol": ["triangle-down" if step < 0 else "triangle-up" for _, step in shown],
                "size": 9,
                "color": MARK,
                "line": {"width": 1, "color": "white"},
            },
            "hovertext": [
                f"<b>{time_text(d.time_s)}: {d.instances} instances ({step:+d})</b>"
                f"<br>{_wrapped(d.reason)}"
                for d, step in shown
            ],
            "hoverinfo": "text",
        }
    ]


def _wrapped(text: str) -> str:
    import textwrap

    return "<br>".join(html.escape(part) for part in textwrap.wrap(text, 70)[:12])


def _decisions(ranked: Ranked) -> list[tuple[str, int, str, str]]:
    """Rows of the table: time, instances, change, reason."""
    rows = zip(ranked.series.decisions, _steps(ranked), strict=True)
    return [(time_text(d.time_s), d.instances, f"{step:+d}", d.reason) for d, step in rows]
