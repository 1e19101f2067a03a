"""How many GPUs, which autoscaler with which settings, what if: an answer for a trace of your own.

    llmscale advise trace=FILE slo=ttft:S,itl:S [KEY=VALUE ...]
    (or: python -m experiments.desk.advise ...)

    trace=FILE         requests: CSV with arrival_time_s,input_tokens,output_tokens (slo_class, if
                       there are classes), or a format of docs/workloads.md (format=NAME; sort=true
                       sorts the rows; hash_block_tokens=64: of a Dynamo trace)
    columns=A,B,...    of another CSV or of JSON lines: arrival:ts,input:prompt,output:gen and
                       perhaps class:tier,conversation:id; arrivals are seconds or time stamps
    slo=ttft:S,itl:S   targets: time to first token, mean time between the tokens of a request; of
                       a trace with classes: chat/ttft:1,itl:0.05+batch/ttft:60,itl:0.2
    attainment=0.99    share of each class's requests that have to be on time
    llm=, gpu=, tp=N   names of cards or files (llmscale cards; llama-3.1-8b, a100-80gb); GPUs per
                       instance: the fewest that fit
    iteration_times=   of your own GPU: a file of llmscale calibrate
    max_gpus=60        at most so many at a time
    load_s=180         seconds from an order of an instance until it serves
    usd_per_gpu_hour=  for dollars beside GPU-hours
    policies=A,B       of the registry, beside the fixed fleet; with settings (hpa:kv_target=0.5)
                       they are taken as they are. All fast autoscalers if left out; twin, a
                       planner, takes minutes
    trials=N           settings that are tried of each autoscaler (40, fewer of long traces)
    what_ifs=false     leave them out
    seed=0             draws the requests that a what-if repeats or leaves out; the search has none
    workers=2          processes; the answer is the same with any number
    out=FOLDER         where the answer goes (results/advise)

The first half of the trace tunes: the smallest fixed fleet, and each autoscaler's settings, that
keep the targets under 1.1 times its requests. The rest judges, from the fleet and the queues that
the first half leaves. Ranked by GPU-hours are those that keep every target, then the others by how
little they miss. Prints the ranking and the what-ifs, writes page.html, answer.json, ranking.csv,
what_ifs.csv and series.csv. Settings that were tried are kept in FOLDER/cache, so an interrupted
command goes on when it is given again. Exit code 0 when a policy keeps every target, 1 when none
does, 2 for a slip, 130 when interrupted.

Examples:
    llmscale advise trace=my.csv slo=ttft:1,itl:0.05 load_s=180 usd_per_gpu_hour=2.5
    llmscale advise trace=log.csv columns=arrival:ts,input:prompt,output:gen slo=ttft:2,itl:0.1
    llmscale advise trace=my.csv slo=chat/ttft:1,itl:0.05+batch/ttft:60,itl:0.2 policies=hpa,keda
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from baselines import PolicyError, make_policy
from baselines.parameters import parse_policy, split_policies
from baselines.registry import POLICIES, TUNABLE
from baselines.tuning.episodes import fingerprint
from experiments.desk.advising.case import (
    INTERVAL_S,
    MOST_CLASSES,
    POOL,
    Case,
    Source,
    columns_of,
    digest_of,
    split,
    to_plain,
)
from experiments.desk.advising.judge import (
    Verdict,
    fleets,
    judge,
    keeps,
    needed,
    shortfall,
)
from experiments.desk.advising.search import (
    HEADROOM,
    able,
    fixed_settings,
    least_fixed,
    spelled,
    trials_of,
    tune,
)
from experiments.desk.answer import Answer, Outcome, Question, Ranked, Target, WhatIf
from experiments.desk.page import write_page
from experiments.output import RESULTS, text_table, write_csv
from llmscale_env import __version__, _spread
from llmscale_env._cli import (
    Slip,
    check_folder,
    closest,
    complain,
    flag,
    needs,
    number,
    parse_options,
    run_command,
    whole,
)
from llmscale_env._spread import ALONE, Launcher, OtherCode, WorkerLost, crew, launcher_of, spread
from llmscale_env._writing import write_text
from llmscale_env.cluster.cards import gpu_card, known_gpus, llm_card
from llmscale_env.cluster.iteration_data import DataFileError
from llmscale_env.cluster.iteration_time import basis, iteration_time_model
from llmscale_env.cluster.kv import TP_DEGREES, fitting_tp
from llmscale_env.scenarios.basis import times_told
from llmscale_env.scenarios.load import ScenarioError
from llmscale_env.workload.readers import FORMATS, Trace
from llmscale_env.workload.requests import PS_PER_S

KEYS = (
    "trace", "format", "columns", "sort", "hash_block_tokens", "slo", "attainment", "llm", "gpu", "tp",
    "iteration_times", "max_gpus", "load_s", "usd_per_gpu_hour", "policies", "trials", "what_ifs",
    "seed", "out", *_spread.WORDS,
)  # fmt: skip

USUAL = (
    "hpa", "keda", "kpa", "ray-serve", "llumnix", "llumnix-freeness", "wva", "wva-tokens", "dynamo", "paced",
)  # fmt: skip
"""Autoscalers that are tried unless `policies=` names others: all that decide at once."""

LOADS = (0.5, 1.5, 2.0)
USUAL_LOAD_S = 180.0
TIGHTER, LOOSER = 0.5, 2.0
MOST_TRIALS = 10_000
_ONE_CLASS = "all"


@dataclass(frozen=True)
class Asked:
    """The command line, checked.

    Attributes:
        case: without the instances at the start.
        trace: as read.
        named: path that was given.
        policies: (name in the registry, settings; None: to be tuned), without the fixed fleet.
        trials: settings to try of each that is tuned.
        what_ifs: whether they are wanted.
        launcher: where episodes run.
        out: folder.
        words: of the command line.
    """

    case: Case
    trace: Trace
    named: str
    policies: tuple[tuple[str, dict[str, Any] | None], ...]
    trials: dict[str, int]
    what_ifs: bool
    launcher: Launcher
    out: Path
    words: tuple[str, ...]

    @property
    def target(self) -> float:
        """Share of a class's requests that have to be on time."""
        return self.case.targets[0].attainment


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; 0 when a policy keeps every target, 1 when none does, 2 for a slip."""
    return run_command(
        "advise", __doc__, argv, _run,
        interrupted="interrupted; the same command goes on where it stopped",
        slips=(WorkerLost, OtherCode),
    )  # fmt: skip


def _run(words: list[str]) -> int:
    asked = ask(words)
    answer = advise(asked)
    print(ranking_text(answer))
    if answer.what_ifs:
        print(f"\n{what_ifs_text(answer)}")
    print("\n" + "\n".join(f"- {sentence}" for sentence in answer.rests_on))
    print(f"\n{verdict_text(answer)}")
    written = write(answer, asked.out)
    try:
        written.append(write_page(answer, asked.out / "page.html"))
    except ModuleNotFoundError as error:
        complain(f"no page.html: it needs {error.name} (pip install 'llmscale[operator]')")
    print("written: " + ", ".join(map(str, written)))
    return 0 if answer.ranking[0].keeps else 1


# ---- the command line ----


def ask(words: Sequence[str]) -> Asked:
    """The command line, checked before anything is simulated.

    Raises:
        Slip: naming the option, its value and what is allowed.
    """
    options = parse_options(words, KEYS)
    if "trace" not in options:
        raise Slip("what requests? trace=FILE")
    attainment = number(options, "attainment", 0.99, 0.0, 1.0, above=True, below=True)
    slo = slo_of(options.get("slo", ""))
    llm, gpu, tp = _instance(options)
    max_gpus = whole(options, "max_gpus", 60, 1, 10_000)
    if max_gpus < tp:
        raise Slip(f"max_gpus = {max_gpus}: must be at least tp = {tp}, the GPUs of an instance")
    load_s = number(options, "load_s", USUAL_LOAD_S, 0.0, 86_400.0)
    price = None
    if "usd_per_gpu_hour" in options:
        price = number(options, "usd_per_gpu_hour", 0.0, 0.0, 1e6)
    policies = _policies(options)
    launcher = launcher_of(options, workers=2)
    wanted, seed = flag(options, "what_ifs", True), whole(options, "seed", 0, 0, 2**31)
    out = Path(options.get("out", RESULTS / "advise"))
    check_folder("out", out)
    source, trace = _source(options, out)
    span_s, tuned_s = split(trace, load_s)
    targets = _targets(slo, trace, attainment)
    case = Case(
        source=source, by_class=trace.slo_class is not None, llm=llm, gpu=gpu, tp=tp,
        iteration_times=options.get("iteration_times"), targets=targets, load_s=load_s,
        max_gpus=max_gpus, usd_per_gpu_hour=price, span_s=span_s, tuned_s=tuned_s, seed=seed,
    )  # fmt: skip
    try:
        scenario = case.whole()
        for pool in scenario.fleet.pools:
            iteration_time_model(pool.llm, pool.gpu, pool.tp, data=scenario.iteration_times)
    except (ScenarioError, DataFileError) as error:
        raise Slip(" ".join(str(error).split())) from None
    first = int((trace.arrival_ps < tuned_s * PS_PER_S).sum())
    trials = {name: trials_of(name, first) for name, given in policies if given is None}
    if "trials" in options:
        trials = dict.fromkeys(trials, whole(options, "trials", 1, 1, MOST_TRIALS))
    if trials:
        needs("optuna")
    for name, settings in policies:
        if why := able(name, case):
            raise Slip(f"policies = {name!r}: cannot run on one pool of one LLM: {why}")
        if settings is not None:
            _check_settings(name, settings, case)
    return Asked(
        case, trace, options["trace"], policies, trials, wanted, launcher, out, tuple(words)
    )


def slo_of(text: str) -> dict[str | None, tuple[float, float]]:
    """(TTFT, ITL) targets in seconds, by class; None: of every class.

    Raises:
        Slip: another form, a class or a target that is given twice, a number that is not positive.
    """
    form = (
        "must be ttft:SECONDS,itl:SECONDS, or of classes chat/ttft:1,itl:0.05+batch/ttft:60,itl:0.2"
    )
    made: dict[str | None, tuple[float, float]] = {}
    for one in text.split("+"):
        head, slash, rest = one.rpartition("/")
        name = head if slash else None
        found: dict[str, float] = {}
        for part in rest.split(","):
            key, colon, value = part.partition(":")
            if key not in ("ttft", "itl") or not colon:
                raise Slip(f"slo = {text!r}: {form}")
            if key in found:
                raise Slip(f"slo = {text!r}: {key} is given twice; {form}")
            try:
                found[key] = float(value)
            except ValueError:
                found[key] = math.nan
            if not 0 < found[key] < 1e6:
                raise Slip(
                    f"slo = {text!r}: {key} = {value!r}: must be a positive number of seconds"
                )
        if len(found) < 2 or name == "" or name in made or (made and None in (name, *made)):
            raise Slip(f"slo = {text!r}: {form}")
        made[name] = found["ttft"], found["itl"]
    return made


def _instance(options: Mapping[str, str]) -> tuple[str, str, int]:
    names: dict[str, str] = {}
    looks: dict[str, tuple[str, Callable[[str], Any]]] = {
        "llm": ("llama-3.1-8b", llm_card),
        "gpu": ("a100-80gb", gpu_card),
    }
    for key, (default, look_up) in looks.items():
        try:
            names[key] = str(look_up(options.get(key, default)).name)
        except ValueError as error:
            said = str(error)
            named = said.startswith(f"{key} = ")
            raise Slip(said if named else f"{key} = {options.get(key)!r}: {said}") from None
    fit = fitting_tp(names["llm"], names["gpu"])
    if not fit:
        raise Slip(
            f"llm = {names['llm']!r}: does not fit {names['gpu']}, at no degree of "
            f"{','.join(map(str, TP_DEGREES))} GPUs an instance"
        )
    if "tp" not in options:
        return names["llm"], names["gpu"], fit[0]
    if options["tp"] not in map(str, fit):
        raise Slip(
            f"tp = {options['tp']!r}: must be one of {','.join(map(str, fit))}, the degrees at which "
            f"{names['llm']} fits {names['gpu']}"
        )
    return names["llm"], names["gpu"], int(options["tp"])


def _source(options: Mapping[str, str], out: Path) -> tuple[Source, Trace]:
    """The trace's file and what it holds; one with other columns is written as a plain one first."""
    path = Path(options["trace"])
    digest_of(path, "trace")
    form = options.get("format", "auto")
    if form not in ("auto", *FORMATS):
        raise Slip(f"format = {form!r}: must be one of {','.join(('auto', *FORMATS))}")
    if "columns" in options:
        if "format" in options:
            raise Slip(f"format = {form!r}: not together with columns=")
        path = to_plain(path, columns_of(options["columns"]), out / "trace.csv")
        form = "plain"
    if "iteration_times" in options:
        digest_of(Path(options["iteration_times"]), "iteration_times")
    source = Source(
        str(path),
        form,
        flag(options, "sort"),
        whole(options, "hash_block_tokens", 512, 1, 1_000_000),
        digest_of(path, "trace"),
    )
    try:
        return source, source.read()
    except ValueError as error:
        raise Slip(f"trace = {options['trace']!r}: {error}") from None


def _targets(
    slo: Mapping[str | None, tuple[float, float]], trace: Trace, attainment: float
) -> tuple[Target, ...]:
    names = (_ONE_CLASS,) if trace.slo_class is None else trace.slo_class.names
    if len(names) > MOST_CLASSES:
        raise Slip(
            f"trace = {trace.path!r}: names {len(names)} classes: must be at most {MOST_CLASSES}; "
            "columns= without class takes all requests for one"
        )
    if None in slo:
        slo = dict.fromkeys(names, slo[None])
    elif trace.slo_class is None:
        raise Slip(f"slo: names classes {_listed(slo)}, and the trace has no column slo_class")
    if set(slo) != set(names):
        raise Slip(f"slo: names classes {_listed(slo)}, and the trace has {_listed(names)}")
    return tuple(
        Target(name=name, ttft_s=slo[name][0], itl_s=slo[name][1], attainment=attainment)
        for name in names
    )


def _listed(names: Any) -> str:
    return ",".join(sorted(map(str, names)))


def _policies(options: Mapping[str, str]) -> tuple[tuple[str, dict[str, Any] | None], ...]:
    allowed = [name for name, each in POLICIES.items() if each.family == "pools" and each.tunable]
    allowed.remove("static")
    found: dict[str, dict[str, Any] | None] = {}
    for text in split_policies(options.get("policies", ",".join(USUAL))):
        try:
            name, settings = parse_policy(text)
            if name not in allowed:
                raise Slip(
                    f"policies = {text!r}: must be some of {','.join(allowed)}{_hint(name, allowed)}"
                )
            if name in found:
                raise Slip(f"policies = {text!r}: {name} is given twice")
            made = make_policy(name, **settings)
        except PolicyError as error:
            raise Slip(f"policies = {text!r}: {error}") from None
        found[name] = None
        if settings:
            plain = made.parameters.model_dump()  # type: ignore[attr-defined]
            found[name] = {key: plain[key] for key in settings}
    return tuple(found.items())


def _hint(name: str, allowed: Sequence[str]) -> str:
    if name == "static":
        return " (the best fixed fleet is always searched)"
    near = closest(name, allowed)
    return near if near.startswith(" (") else ""


def _check_settings(name: str, settings: Mapping[str, Any], case: Case) -> None:
    try:
        TUNABLE[name](**settings).reset(case.whole(), 0)
    except PolicyError as error:
        raise Slip(f"policies = {name!r}: {error}") from None


# ---- the answer ----


def advise(asked: Asked) -> Answer:
    """Tune on the first part, judge on the rest, change one thing at a time.

    Raises:
        WorkerLost: a process ended without an answer.
    """
    folder = asked.out / "cache"
    code = fingerprint("advise", [asked.case.tuning(HEADROOM)])
    case, settings = _tuned(asked, folder, code)
    names = list(settings)
    verdicts = dict(
        zip(
            names,
            _each(asked, "judge", judge, [(n, settings[n], case) for n in names]),
            strict=True,
        )
    )
    missed = [n for n in names if not keeps(verdicts[n].held_out, case.targets)]
    would = dict.fromkeys(names, "")
    if missed:
        limit = settings["static"].get("batch_limit")
        start = int(settings["static"][POOL])
        (fixed,) = _each(asked, "fixed fleets", fleets, [(case, limit, start)])
        calls = [(n, settings[n], case, fixed) for n in missed]
        said = _each(asked, "what would keep it", needed, calls)
        would |= dict(zip(missed, said, strict=True))
    ranking = tuple(
        _ranked(name, settings[name], verdicts[name], case, would[name])
        for name in sorted(names, key=lambda n: _rank(n, verdicts[n], case, names))
    )
    changed = _what_ifs(asked, case, ranking) if asked.what_ifs else ()
    return Answer(
        version=__version__,
        question=Question(
            trace=asked.named, requests=len(asked.trace), span_s=case.span_s, tuned_s=case.tuned_s,
            llm=case.llm, gpu=case.gpu, tp=case.tp, load_s=case.load_s, max_gpus=case.max_gpus,
            usd_per_gpu_hour=case.usd_per_gpu_hour, targets=case.targets, words=asked.words,
            control_interval_s=INTERVAL_S,
        ),
        rests_on=tuple(_rests_on(asked, case, settings, changed)),
        winner=ranking[0].policy,
        ranking=ranking,
        what_ifs=changed,
    )  # fmt: skip


def _tuned(asked: Asked, folder: Path, code: str) -> tuple[Case, dict[str, dict[str, Any]]]:
    """The case with the best fixed fleet as its start, and settings by policy."""
    case, settings = asked.case, {}
    with _bar("fixed fleet", None) as advance:
        found = least_fixed(case, asked.target, folder, code, advance)
    # Where none is enough, the whole fleet comes nearest.
    fleet, limit = found or (case.most, None)
    settings["static"] = fixed_settings(fleet, limit)
    case = replace(case, initial=fleet)
    own = fingerprint("advise", [case.tuning(HEADROOM)])
    tuned: dict[str, dict[str, Any]] = {}
    with _bar("tune", sum(asked.trials.values())) as advance:

        def hears(_: Any, count: int) -> None:
            advance(count)

        with crew(asked.launcher, len(asked.trials), hears) as workers:
            for name, trials in asked.trials.items():
                call = (name, case, asked.target, trials, str(folder), own)
                workers.submit(name, tune, *call)
            for name, best in workers:
                tuned[name] = best
    for name, given in asked.policies:
        settings[name] = tuned[name] if given is None else given
    return case, settings


def _rank(name: str, verdict: Verdict, case: Case, order: Sequence[str]) -> tuple[float, ...]:
    """What to sort by: those that keep every target by GPU-hours, then the others by what they miss.

    Ties go to fewer actions, and then to the order of the policies, which begins with the fixed fleet.
    """
    outcome = verdict.held_out
    short = max(0.0, shortfall(outcome, case.targets))
    hours = round(outcome.gpu_hours, 3)
    return (float(short > 0), short, hours, outcome.scaling_actions, order.index(name))


def _ranked(
    name: str, settings: dict[str, Any], verdict: Verdict, case: Case, would: str
) -> Ranked:
    return Ranked(
        policy=name,
        settings=settings,
        spelled=spelled(name, settings),
        tuned=verdict.tuned,
        held_out=verdict.held_out,
        keeps=keeps(verdict.held_out, case.targets),
        needs=would,
        series=verdict.series,
    )


def _what_ifs(asked: Asked, case: Case, ranking: Sequence[Ranked]) -> tuple[WhatIf, ...]:
    """One thing changed, for the winner, the runner-up and the fixed fleet, settings as they are."""
    chosen = [*ranking[:2], *(r for r in ranking[2:] if r.policy == "static")]
    changes = [(group, value, other) for group, value, other in changed_cases(case)]
    calls = [(r.policy, r.settings, other) for _, _, other in changes for r in chosen]
    found = _each(asked, "what-ifs", judge, calls)
    made = []
    outcomes = iter(found)
    for group, value, other in changes:
        for r in chosen:
            outcome: Outcome = next(outcomes).held_out
            if group == "gpu":  # its price is another one, which nobody has told
                outcome = outcome.model_copy(update={"usd": None})
            made.append(
                WhatIf(
                    group=group,
                    value=value,
                    policy=r.policy,
                    outcome=outcome,
                    keeps=keeps(outcome, other.targets),
                )
            )
    return tuple(made)


def changed_cases(case: Case) -> Iterator[tuple[str, str, Case]]:
    """(group, value, case) of every what-if."""
    for load in LOADS:
        yield "load", f"x{load:g}", replace(case, load=load)
    loads_s = dict.fromkeys((case.load_s / 2, 2 * case.load_s, USUAL_LOAD_S))
    for load_s in loads_s:
        if load_s != case.load_s:
            yield "loading", f"{load_s:g} s", replace(case, load_s=load_s)
    for gpu in known_gpus():
        if gpu != case.gpu and case.tp in fitting_tp(case.llm, gpu):
            yield "gpu", gpu, replace(case, gpu=gpu)
    for value, factor in (("half", TIGHTER), ("double", LOOSER)):
        targets = tuple(
            t.model_copy(update={"ttft_s": factor * t.ttft_s, "itl_s": factor * t.itl_s})
            for t in case.targets
        )
        yield "slo", value, replace(case, targets=targets)


def _rests_on(
    asked: Asked,
    case: Case,
    settings: Mapping[str, Mapping[str, Any]],
    changed: Sequence[WhatIf],
) -> Iterator[str]:
    trace, scenario = asked.trace, case.whole()
    for line in times_told(scenario):
        yield f"{line[0].upper()}{line[1:]}."
    others = dict.fromkeys(w.value for w in changed if w.group == "gpu")
    for kind in ("measured", "interpolated", "roofline"):
        names = [
            gpu
            for gpu in others
            if basis(
                iteration_time_model(case.llm, gpu, case.tp, data=case.iteration_times)
            ).startswith(kind)
        ]
        if names:
            yield f"Iteration times of other GPUs, {kind}: {', '.join(names)}."
    dropped = trace.dropped_zero_input + trace.dropped_zero_output
    left = f"; {dropped:,} rows without prompt or answer were left out" if dropped else ""
    yield f"All {len(trace):,} requests of the trace were simulated{left}."
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
        f"The verdict is one episode that happened once, {max(1, round(held_s / 300))} stretches of five "
        "minutes: of another day it says nothing beyond that."
    )
    count = int(settings["static"][POOL])
    yield (
        f"Every policy begins with the {count} instances of the best fixed fleet, so there is no cold start, "
        "and the held-out part goes on from the fleet and the queues of the first."
    )
    if trace.llm is not None and len(trace.llm.names) > 1:
        yield (
            f"The trace names {len(trace.llm.names)} LLMs; all requests were taken for {case.llm}'s."
        )
    if trace.prefixes is None:
        yield "The trace does not say which prompts begin alike, so the prefix cache finds nothing."


def _each(
    asked: Asked, what: str, function: Callable[..., Any], calls: Sequence[tuple[Any, ...]]
) -> list[Any]:
    """What a function returns of each call, in their order."""
    found: dict[int, Any] = {}
    # One call is sooner done here than by a process that has to start.
    launcher = asked.launcher if len(calls) > 1 else ALONE
    with _bar(what, len(calls)) as advance:
        for number_, value in spread(function, calls, launcher):
            found[number_] = value
            advance()
    return [found[k] for k in range(len(calls))]


@contextmanager
def _bar(what: str, total: int | None) -> Iterator[Callable[..., Any]]:
    """A bar of progress on a terminal; gives what advances it."""
    from tqdm import tqdm

    with tqdm(desc=what, total=total, unit="run", disable=None, leave=False) as bar:
        yield bar.update


# ---- what is shown and written ----


def ranking_text(answer: Answer) -> str:
    """The ranking as a table."""
    names = [target.name for target in answer.question.targets]
    priced = answer.question.usd_per_gpu_hour is not None
    head = ["", "policy", *(f"{name} on time" for name in names), "worst 5 min", "GPU-h"]
    head += ["USD"] if priced else []
    head += ["GPUs mean", "peak", "actions"]
    rows = []
    for place, ranked in enumerate(answer.ranking, 1):
        o = ranked.held_out
        row = [f"{place}" if ranked.keeps else "-", ranked.policy]
        row += [_percent(o.attainment[name]) for name in names]
        row += [_percent(o.worst_five_minutes), f"{o.gpu_hours:.2f}"]
        row += [f"{o.usd:.2f}" if o.usd is not None else "-"] if priced else []
        row += [f"{o.mean_gpus:.1f}", str(o.peak_gpus), str(o.scaling_actions)]
        rows.append(row)
    lines = [text_table(head, rows), "", "Settings, as policies= takes them:"]
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
            row.append(f"{_percent(worst)}{mark}, {one.outcome.gpu_hours:.2f} GPU-h")
        rows.append(row)
    note = "Worst class on time, GPU-hours; ! misses its target. Settings as they were tuned."
    return f"{text_table(['what if', '', *policies], rows)}\n{note}"


def verdict_text(answer: Answer) -> str:
    """The answer in a sentence or two."""
    first = answer.ranking[0]
    if not first.keeps:
        return f"No policy keeps every target; {first.policy} comes nearest. {first.needs}"
    o = first.held_out
    cost = "" if o.usd is None else f", {o.usd:.2f} USD"
    text = f"Best: {first.spelled}: {o.gpu_hours:.2f} GPU-hours{cost} for the held-out part"
    fixed = next((r for r in answer.ranking if r.policy == "static"), None)
    if fixed is None or fixed is first:
        return f"{text}."
    kept = "keeps the target" if fixed.keeps else "misses the target"
    return (
        f"{text}; the best fixed fleet, {fixed.held_out.peak_gpus} GPUs, {kept} with "
        f"{fixed.held_out.gpu_hours:.2f}."
    )


def _percent(share: float | None) -> str:
    # Rounded down: 98.999 % is not 99 %.
    return "-" if share is None else f"{math.floor(1e4 * share + 1e-9) / 100:.2f} %"


def write(answer: Answer, folder: Path) -> list[Path]:
    """answer.json, ranking.csv, series.csv, and what_ifs.csv where there are any."""
    names = [target.name for target in answer.question.targets]
    paths = [write_text(folder / "answer.json", answer.model_dump_json(indent=1) + "\n")]
    head = ["place", "policy", "spelled", "keeps", *_outcome_head(names, "held_out_")]
    head += [*_outcome_head(names, "tuned_"), "needs"]
    rows: list[list[Any]] = []
    for place, r in enumerate(answer.ranking, 1):
        rows.append([place, r.policy, r.spelled, r.keeps, *_outcome_row(r.held_out, names)])
        rows[-1] += [*_outcome_row(r.tuned, names), r.needs]
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


if __name__ == "__main__":
    sys.exit(main())
