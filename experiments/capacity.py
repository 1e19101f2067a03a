"""How many GPUs a load needs, in which configuration, and how sure that is.

    llmscale capacity trace=FILE slo=ttft:S,itl:S [KEY=VALUE ...]
    llmscale capacity rate_per_s=RATE slo=ttft:S,itl:S [...]
    (or: python -m experiments.capacity ...)

    trace=FILE         arrivals and lengths: CSV with arrival_time_s,input_tokens,output_tokens, or
                       another format of docs/workloads.md (format=NAME; sort=true sorts the rows;
                       hash_block_tokens=64: of a Dynamo trace). Workers have no prefix cache
    rate_per_s=RATE    requests per second; of a trace, its time axis is stretched to reach it
    lengths=TABLE      without a trace: a shipped length table (sharegpt-single-turn)
    arrivals=KIND      without a trace: poisson, or a shipped table of counts, for real bursts
    slo=ttft:S,itl:S   targets: time to first token, mean time between the tokens of a request
    attainment=0.99    share of the requests that have to be in time
    policy=NAMES       aladdin, jsq, power-of-two, machine-wide (aladdin,jsq), with parameters as in
                       aladdin:gamma=0.7+theta=0.8; machine-wide with tp=gpus_per_host only
    llm=, gpu=         names of cards (llama-2-13b, where advise takes llama-3.1-8b; a100-80gb), or
                       files: a Hugging Face config.json, a card in YAML
    iteration_times=   of your own GPU: a file of llmscale calibrate
    tp=N,N             GPUs per worker that are tried (1,2,4,8, up to gpus_per_host=8)
    max_gpus=64        no more are tried
    batch_limit=256    requests of a worker's batch
    predictor=NAME     of output lengths: conditional_mean, noisy, oracle
    windows=N          windows of load, each of window_s=120 seconds, with warm_up_s=30 of load
                       before and after. Of a trace that is little work all of it, else 10: its five
                       busiest windows and five drawn ones. Of load without a trace 10
    seed=0             of everything drawn
    out=DIRECTORY      where results go (results/capacity)

For every policy and degree: the least number of workers with which the lower 95 % bound of the
share in time reaches the target, by bisection; every number meets the same windows. The first
lines say what the answer rests on. Writes capacity.csv (every number tried) and capacity.png.
Finished windows are kept in DIRECTORY/cache: an interrupted command goes on when it is given
again. Exit codes: 0 when a configuration was found, 1 when none of those tried is enough, 2 for a
slip (also for a load too small to show the target), 130 when interrupted.

Examples:
    llmscale capacity trace=my.csv slo=ttft:2,itl:0.1 llm=llama-3.1-8b gpu=h100-80gb
    llmscale capacity rate_per_s=8 slo=ttft:2,itl:0.1 policy=jsq tp=1,2 arrivals=azure-code-2023
    llmscale capacity trace=my.csv slo=ttft:1,itl:0.05 llm=./config.json gpu=a100-80gb tp=1,2
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, floor, log10
from pathlib import Path
from typing import Any

import numpy as np

from experiments.capacity_load import (
    Plan,
    Stratum,
    Window,
    plan_of,
    stream_of,
    trace_of,
    window,
)
from experiments.capacity_options import MACHINE_WIDE, MOST_WINDOWS, Request, ask
from experiments.capacity_search import (
    Share,
    best_bound,
    requests_needed,
    share_interval,
    together,
    windows_needed,
)
from experiments.capacity_serve import guess, idle_in_time, run, scenario_of
from experiments.harness.cache import RunCache
from experiments.harness.fingerprint import fingerprint
from experiments.least import least
from experiments.output import new_figure, save_figure, text_table, write_csv
from llmscale_env._cli import Slip, complain, run_command
from llmscale_env.cluster.iteration_data import DataFileError
from llmscale_env.cluster.iteration_model import IterationTimeModel
from llmscale_env.cluster.iteration_time import NoSuchModelError, basis, iteration_time_model
from llmscale_env.cluster.kv import fitting_tp
from llmscale_env.scenarios.schema import Scenario
from llmscale_env.workload.requests import PS_PER_S

HEAD = (
    "policy", "tp", "workers", "gpus", "windows", "requests", "in_time", "attainment", "low", "high",
    "enough",
)  # fmt: skip


@dataclass(frozen=True)
class Tried:
    """A number of workers that was tried.

    Attributes:
        windows: that were simulated: fewer than there are where the rest could not save it.
    """

    policy: str
    tp: int
    workers: int
    windows: int
    share: Share
    enough: bool

    @property
    def gpus(self) -> int:
        """GPUs of all workers."""
        return self.tp * self.workers

    def row(self) -> tuple[Any, ...]:
        """As `HEAD`."""
        s = self.share
        seen = (self.windows, s.requests, s.in_time, s.seen, s.low, s.high)
        return (self.policy, self.tp, self.workers, self.gpus, *seen, self.enough)


@dataclass(frozen=True)
class Answer:
    """What one policy needs with one degree.

    Attributes:
        found: the least number that is enough, or None.
        fewer: one worker less, in all windows; None if there is none.
        note: why nothing was found, or what else is to be known.
    """

    policy: str
    tp: int
    found: Tried | None
    fewer: Tried | None = None
    note: str = ""


class Trials:
    """Numbers of workers, tried in the same windows, with what was done before taken from the cache.

    Args:
        request: what is asked.
        serve: outcome of one window, as `experiments.capacity_serve.run`.
    """

    def __init__(
        self, request: Request, serve: Callable[[Mapping[str, Any]], list[dict[str, Any]]] = run
    ) -> None:
        self.request = request
        self._serve = serve
        self._cache = RunCache(
            request.out / "cache", fingerprint("experiments.capacity_serve", "run")
        )
        self._sizes: list[int] = []
        self._strata: list[Stratum] = []
        self.all: dict[tuple[str, int, int], Tried] = {}

    def sizes(self, counted: Sequence[int], strata: Sequence[Stratum] = ()) -> None:
        """Requests of each window, and `Plan.strata`: none where all windows stand for the same load."""
        self._sizes = list(counted)
        self._strata = list(strata) or [Stratum(slice(None), sum(counted))]

    def share(self, in_time: Sequence[int]) -> Share:
        """Of the whole load, from all windows."""
        parts = [
            share_interval(in_time[k], self._sizes[k], census=census)
            for k, _, census in self._strata
        ]
        return together(parts, [whole for _, whole, _ in self._strata])

    def attempt(self, policy: tuple[str, str, dict[str, Any]], tp: int, workers: int) -> Tried:
        """One number; windows are left out once what they hold could not make it enough."""
        return self._of(policy, tp, workers, all_windows=False)

    def complete(self, policy: tuple[str, str, dict[str, Any]], tp: int, workers: int) -> Tried:
        """One number in every window."""
        return self._of(policy, tp, workers, all_windows=True)

    def _of(
        self, policy: tuple[str, str, dict[str, Any]], tp: int, workers: int, *, all_windows: bool
    ) -> Tried:
        text, name, parameters = policy
        case = self.request.case
        weights = np.ones(len(self._sizes))
        for members, whole, _ in self._strata:
            weights[members] = whole / max(1, sum(self._sizes[members]))
        total, missed = sum(whole for _, whole, _ in self._strata), 0.0
        in_time: list[int] = []
        requests: list[int] = []
        from tqdm import tqdm

        shown = {"unit": "window", "disable": None, "leave": False}
        for k in tqdm(range(case["windows"]), desc=f"{text}, {workers} x {tp} GPUs", **shown):
            # Not even all requests of the other windows would bring the share to the target.
            if not all_windows and missed > (1 - self.request.target) * total:
                break
            mine = {**case, "window": k, "policy": name, "parameters": parameters}
            (row,) = self._window({**mine, "tp": tp, "workers": workers})
            in_time.append(row["in_time"])
            requests.append(row["requests"])
            missed += weights[k] * (row["requests"] - row["in_time"])
        whole_load = len(in_time) == case["windows"]
        share = self.share(in_time) if whole_load else share_interval(in_time, requests)
        enough = whole_load and share.low >= self.request.target
        tried = Tried(text, tp, workers, len(in_time), share, enough)
        self.all[text, tp, workers] = tried
        rows = sorted((t.row() for t in self.all.values()), key=lambda row: row[:3])
        write_csv(self.request.out / "capacity.csv", HEAD, rows)
        print(f"  {text}, {workers} x {tp} GPUs: {_told(tried, case['windows'])}", flush=True)
        return tried

    def _window(self, case: dict[str, Any]) -> list[dict[str, Any]]:
        known = self._cache.get(case)
        if known is not None:
            return known[0]
        begin = time.perf_counter()
        rows = self._serve(case)
        self._cache.put(case, rows, time.perf_counter() - begin)
        return rows


def _told(tried: Tried, windows: int) -> str:
    if tried.windows == windows:
        return str(tried.share)
    late = tried.share.requests - tried.share.in_time
    return f"not enough, {late:,} late in {tried.windows} of {windows} windows"


def search(trials: Trials, policy: tuple[str, str, dict[str, Any]], tp: int, start: int) -> Answer:
    """The least number of workers of one policy and degree, and one fewer."""
    most = trials.request.max_gpus // tp
    number = least(lambda n: trials.attempt(policy, tp, n).enough, most, start)
    if number is None:
        last = trials.complete(policy, tp, most)
        return Answer(
            policy[0], tp, None, note=f"{last.gpus} GPUs are not enough: {last.share} in time"
        )
    found = trials.all[policy[0], tp, number]
    if number == 1:
        return Answer(policy[0], tp, found)
    fewer = trials.complete(policy, tp, number - 1)
    sure = fewer.share.high < trials.request.target
    note = "" if sure else f"one fewer may do: {more_of(trials.request)}"
    return Answer(policy[0], tp, found, fewer, note)


def answers(request: Request, trials: Trials) -> list[Answer]:
    """Every policy with every degree."""
    case = request.case
    found: list[Answer] = []
    for tp in request.degrees:
        asked = [p for p in request.policies if p[1] != MACHINE_WIDE or tp == case["gpus_per_host"]]
        note = ""
        try:
            scenario = scenario_of(case, tp, 1)
            model = iteration_time_model(case["llm"], case["gpu"], tp, data=case["iteration_times"])
            model.profile(max_batch=1)
        except ValueError as error:
            note = f"cannot hold the LLM: {' '.join(str(error).split())}"
        else:
            loads = [window(scenario, {**case, "window": k}) for k in range(case["windows"])]
            counted = [int(load.counted.sum()) for load in loads]
            plan = _plan(request)
            strata = [Stratum(slice(None), sum(counted))] if plan is None else plan.strata
            check_load(request, plan, counted, strata)
            trials.sizes(counted, strata)
            idle = trials.share(idle_in_time(scenario, loads))
            if request.max_gpus < tp:
                note = f"max_gpus = {request.max_gpus} is less than one worker"
            elif idle.seen < request.target:
                note = (
                    f"even an idle worker keeps the SLOs of only {100 * idle.seen:.2f} % of the "
                    "requests"
                )
        if note:
            found += [Answer(policy[0], tp, None, note=note) for policy in asked]
            continue
        beyond = _extrapolated(model, scenario, loads)
        start = guess(scenario, _rate(request))
        for policy in asked:
            answer = search(trials, policy, tp, start)
            if beyond:
                notes = [answer.note, f"extrapolated: {beyond}"]
                answer = replace(answer, note="; ".join(note for note in notes if note))
            if answer.found is None and idle.low < request.target:
                words = (
                    f"{answer.note}; nor is an idle worker sure to be: {idle}: {more_of(request)}"
                )
                answer = replace(answer, note=words)
            found.append(answer)
    return found


def _extrapolated(model: IterationTimeModel, scenario: Scenario, loads: Sequence[Window]) -> str:
    """What the windows may ask of the times beyond what was measured; warns of it once."""
    longest = max(int(load.requests.input_tokens.max(initial=0)) for load in loads)
    return model.warn_beyond(batch=scenario.fleet.pools[0].batch_limit, prefill_tokens=longest)


def check_load(
    request: Request,
    plan: Plan | None,
    counted: Sequence[int],
    strata: Sequence[Stratum],
) -> None:
    """Whether the windows hold enough requests to show the target if all of them are in time.

    Args:
        request: what is asked.
        plan: of the trace, if there is one.
        counted: (n,) requests of each window.
        strata: as of `Plan`.

    Raises:
        Slip: they do not; it says how many requests or windows it takes.
    """
    target = request.target
    total, filled = sum(counted), sum(n > 0 for n in counted)
    if total == 0:
        raise Slip("the windows hold no requests: take more, or longer ones")
    bounds = [
        1.0 if census else best_bound(sum(counted[k]), sum(n > 0 for n in counted[k]))
        for k, _, census in strata
    ]
    bound = float(np.average(bounds, weights=[whole for _, whole, _ in strata]))
    if bound >= target:
        return
    seen = f"{_many(total, 'request')} in {_many(filled, 'window')}"
    if filled < len(counted):
        seen += f" (of {len(counted)}, the others are empty)"
    if np.isnan(bound):
        drawn = "" if plan is None or plan.whole else " drawn"
        why = f"cannot be sure of the others from fewer than two{drawn} windows with requests"
    else:
        why = f"all in time would show {_floor_percent(bound)} (95 % confidence)"
    if plan is not None and not plan.whole:
        raise Slip(
            f"attainment = {target:g}: cannot be shown with {seen}: {why}; "
            f"{all_of(plan)} simulates all of the trace"
        )
    needed = requests_needed(target, len(counted))
    advice = [f"{_many(needed, 'request')} in {len(counted)} windows"]
    windows = windows_needed(target, counted, MOST_WINDOWS) if plan is None else None
    if windows is not None:
        advice.append(f"about windows={windows}")
    short = "" if plan is None else "; the windows hold all of the trace"
    raise Slip(
        f"attainment = {target:g}: cannot be shown with {seen}: {why}; "
        f"it takes {', or '.join(advice)}{short}"
    )


def _floor_percent(share: float) -> str:
    """Two digits, never more than there is."""
    return f"{np.floor(1e4 * share) / 100:.2f} %"


def _part(share: float) -> str:
    """A share above 0 and below 1, with two digits at least of it and of what is left to 1."""
    digits = max(0, 1 - floor(log10(100 * min(share, 1 - share))))
    return f"{100 * share:.{digits}f} %"


def _rate(request: Request) -> float:
    """Requests per second, on average."""
    stream = stream_of(request.case)
    if stream.rate_per_s is not None:
        return stream.rate_per_s
    trace, _ = trace_of(stream)
    return len(trace) / (trace.period_ps / PS_PER_S)


def _plan(request: Request) -> Plan | None:
    return plan_of(stream_of(request.case), request.case)


def asked(request: Request) -> list[str]:
    """Three lines: what the answer is for, which part of the load is simulated, what the times rest on."""
    case, plan = request.case, _plan(request)
    degrees = ", ".join(map(str, request.degrees))
    first = f"{case['llm']} on {case['gpu']}, tensor parallelism of {degrees}"
    return [first, f"simulated: {_simulated(case, plan)}", f"iteration times: {_basis(request)}"]


def _simulated(case: Mapping[str, Any], plan: Plan | None) -> str:
    if plan is None:
        seconds = f"{_many(case['windows'], 'window')} of {case['window_s']:g} s"
        return f"{seconds} of load, drawn with seed {case['seed']}"
    name, total = Path(case["stream"]["arrivals"]["path"]).name, int(plan.requests.sum())
    seconds = f"{_many(len(plan.parts), 'window')} of {plan.part_s:.3g} s"
    if plan.whole:
        return f"all {_many(total, 'request')} of {name}, in {seconds}"
    drawn = len(plan.parts) - plan.busiest
    return (
        f"{_part(plan.coverage)} of the {_many(total, 'request')} of {name}, in {seconds} "
        f"of {len(plan.requests):,}: the busiest {plan.busiest}, and {drawn} drawn with seed {case['seed']}"
    )


def _basis(request: Request) -> str:
    """What the times rest on, by the degrees that hold the LLM and have times.

    Raises:
        Slip: the file of iteration times cannot be read.
    """
    case, found = request.case, dict[str, list[str]]()
    for tp in request.degrees:
        if tp not in fitting_tp(case["llm"], case["gpu"]):
            continue
        try:
            model = iteration_time_model(case["llm"], case["gpu"], tp, data=case["iteration_times"])
        except DataFileError as error:
            raise Slip(f"iteration_times: {error}") from None
        except NoSuchModelError:
            continue
        found.setdefault(basis(model), []).append(str(tp))
    if len(found) == 1:
        return next(iter(found))
    told = [f"{what} (GPUs per worker: {', '.join(degrees)})" for what, degrees in found.items()]
    return "; ".join(told) or "none, since no degree holds the LLM and has times"


def more_of(request: Request) -> str:
    """What would make bounds tighter."""
    plan = _plan(request)
    if plan is not None and plan.whole:
        return "a longer trace"
    return "more windows" if request.case["windows"] < MOST_WINDOWS else "longer windows"


def all_of(plan: Plan) -> str:
    """The options that simulate all of a trace: longer windows where there would be too many."""
    if len(plan.requests) <= MOST_WINDOWS:
        return f"windows={len(plan.requests)}"
    window_s = ceil(plan.part_s * len(plan.requests) / MOST_WINDOWS)
    return f"windows={MOST_WINDOWS} window_s={window_s}"


def unsure(request: Request) -> str:
    """Why another seed may give another answer; empty where all of a trace was simulated."""
    plan = _plan(request)
    if plan is None or plan.whole:
        return ""
    return (
        f"not sure: {_part(1 - plan.coverage)} of the requests were not simulated, and another "
        f"seed may give another answer: {all_of(plan)} simulates all of them"
    )


def best(found: Sequence[Answer]) -> Answer | None:
    """The answer with the fewest GPUs; of equals the one with the higher lower bound."""
    some = [(a.found.gpus, -a.found.share.low, a.tp, k) for k, a in enumerate(found) if a.found]
    return found[min(some)[3]] if some else None


def table(found: Sequence[Answer]) -> str:
    """Answers as text."""
    rows = []
    for a in found:
        numbers = ("-", "-", "-") if a.found is None else (
            f"{a.found.workers:,}", f"{a.found.gpus:,}", str(a.found.share)
        )  # fmt: skip
        rows.append((a.policy, str(a.tp), *numbers, str(a.fewer.share) if a.fewer else "-", a.note))
    head = (
        "policy",
        "GPUs per worker",
        "workers",
        "GPUs",
        "in time [90 %]",
        "one fewer [90 %]",
        "",
    )
    return text_table(head, rows)


def _many(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def sentence(answer: Answer | None, target: float, more: str = "more windows") -> str:
    """The recommendation, and how sure it is; `more` is what would make it surer."""
    if answer is None or answer.found is None:
        return f"no configuration that was tried has {100 * target:g} % of the requests in time"
    found, share = answer.found, answer.found.share
    text = (
        f"recommended: {_many(found.gpus, 'GPU')}, {_many(found.workers, 'worker')} of {found.tp}, "
        f"{answer.policy}: at least {100 * share.low:.2f} % of the requests are in time "
        f"(95 % confidence; {100 * share.seen:.2f} % of {share.requests:,} were)"
    )
    if answer.fewer is None:
        return text
    high = f"{100 * answer.fewer.share.high:.2f} %"
    if answer.fewer.share.high < target:
        return f"{text}; with one worker fewer at most {high} (95 %)"
    return f"{text}; one worker fewer cannot be ruled out (up to {high}): {more} may tell"


def draw(trials: Trials, path: Path) -> Path:
    """Attainment against GPUs, a panel for each degree, with the target."""
    case, target = trials.request.case, trials.request.target
    degrees = sorted({tp for _, tp, _ in trials.all})
    names = [p[0] for p in trials.request.policies]
    figure = new_figure(2.0 + 3.2 * len(degrees), 4.6)
    panels = figure.subplots(1, len(degrees), sharey=True, squeeze=False)[0]
    for axes, tp in zip(panels, degrees, strict=True):
        for k, name in enumerate(names):
            mine = [t for t in trials.all.values() if (t.policy, t.tp) == (name, tp)]
            if mine:
                _line(axes, sorted(mine, key=lambda t: t.gpus), k, case["windows"])
        axes.axhline(100 * (1 - target), color="0.3", lw=1.0, ls="--")
        axes.set_title(f"{tp} GPU{'s' if tp > 1 else ''} per worker", fontsize=10)
        axes.set_xlabel("GPUs")
        shown = [t.gpus for t in trials.all.values() if t.tp == tp]
        axes.set_xlim(max(0, min(shown) - tp), max(shown) + tp)
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.grid(alpha=0.3)
    # What is missing to 100 %, on a scale that tells 99 from 99.9.
    panels[0].set_yscale("symlog", linthresh=0.1)
    panels[0].set_ylim(100, 0)
    panels[0].set_yticks([100, 50, 10, 5, 1, 0.5, 0.1, 0])
    panels[0].set_yticklabels(["0", "50", "90", "95", "99", "99.5", "99.9", "100"])
    panels[0].set_ylabel("requests in time (%), bars: 90 %")
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], color=f"C{k % 10}", marker=_MARKERS[k % len(_MARKERS)], ms=5, label=name)
        for k, name in enumerate(names)
    ]
    handles += [
        Line2D([], [], color="0.3", ls="--", label=f"target {100 * target:g} %"),
        Line2D([], [], color="0.3", ls="", marker="o", mfc="white", ms=5, label="not enough"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), fontsize=8)
    figure.suptitle(
        f"{case['llm']} on {case['gpu']}: TTFT {case['ttft_s']:g} s, ITL {1e3 * case['itl_s']:g} ms",
        fontsize=10,
    )
    return save_figure(figure, path)


_MARKERS = "os^Dv<>P"


def _line(axes: Any, mine: Sequence[Tried], k: int, windows: int) -> None:
    """Numbers of one policy; bars only where all windows were simulated."""
    gpus = [t.gpus + 0.06 * k * t.tp for t in mine]
    late = [100 * (1 - t.share.seen) for t in mine]
    color, marker = f"C{k % 10}", _MARKERS[k % len(_MARKERS)]
    axes.plot(gpus, late, color=color, lw=1.0, alpha=0.6, clip_on=False)
    for x, y, t in zip(gpus, late, mine, strict=True):
        if t.windows == windows:
            axes.vlines(x, 100 * (1 - t.share.high), 100 * (1 - t.share.low), color=color, lw=1.2)
        axes.plot(
            x, y, marker, color=color, ms=6, mfc=color if t.enough else "white", clip_on=False
        )


def main(words: Sequence[str] | None = None) -> int:
    """Run the command; see the module for exit codes."""
    kept = "stopped; finished windows are kept, the same command goes on from there"
    return run_command("capacity", __doc__, words, _run, interrupted=kept, wordless=True)


def _run(words: list[str]) -> int:
    request = ask(words)
    print("\n".join(asked(request)), flush=True)
    trials = Trials(request)
    found = answers(request, trials)
    print(table(found))
    chosen = best(found)
    print(sentence(chosen, request.target, more_of(request)))
    if doubt := unsure(request):
        print(doubt)
    if trials.all:
        print(f"written: {request.out / 'capacity.csv'}")
        try:
            print(f"drawn: {draw(trials, request.out / 'capacity.png')}")
        except ModuleNotFoundError as error:
            module = str(error.name).partition(".")[0]
            complain(f"no capacity.png: it needs {module} (pip install 'llmscale[plots]')")
    return 0 if chosen else 1


if __name__ == "__main__":
    sys.exit(main())
