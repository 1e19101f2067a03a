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
    policies=A,B       of the registry, beside the fixed fleet; with settings (hpa:kv_target=0.5,
                       static:serving=3) they are taken as they are. All fast autoscalers if left
                       out; twin, a planner, takes minutes
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

import hashlib
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from baselines import PolicyError, make_policy
from baselines.parameters import parse_policy, split_policies
from baselines.registry import POLICIES, TUNABLE
from experiments.desk.advising.case import (
    INTERVAL_S,
    MOST_CLASSES,
    POOL,
    Case,
    Source,
    by_rooflines,
    columns_of,
    digest_of,
    keep_plain,
    split,
    to_plain,
)
from experiments.desk.advising.judge import (
    Verdict,
    fleets,
    hindsight,
    judge,
    keeps,
    needed,
    shortfall,
)
from experiments.desk.advising.report import (
    FILES,
    ranking_text,
    rests_on,
    verdict_text,
    what_ifs_text,
    write,
)
from experiments.desk.advising.search import (
    able,
    fixed_settings,
    key_of,
    least_fixed,
    spelled,
    trials_of,
    tune,
)
from experiments.desk.answer import Answer, Outcome, Question, Ranked, WhatIf
from experiments.desk.deploy import runs_on
from experiments.desk.page import write_page
from experiments.desk.targets import Target, slo_of
from experiments.output import RESULTS
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
from llmscale_env.cluster.cards import gpu_card, known_gpus, llm_card
from llmscale_env.cluster.iteration_data import DataFileError
from llmscale_env.cluster.iteration_time import iteration_time_model
from llmscale_env.cluster.kv import TP_DEGREES, fitting_tp
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
    for key in ("trace", "iteration_times"):
        _check_apart(options, key, out)
    with tempfile.TemporaryDirectory() as folder:
        source, trace = _source(options, Path(folder))
        case, trials = _case(
            options, source, trace, policies, slo, attainment,
            llm=llm, gpu=gpu, tp=tp, load_s=load_s, max_gpus=max_gpus, usd_per_gpu_hour=price, seed=seed,
        )  # fmt: skip
        if "columns" in options:  # nothing is wrong with any word: now it may be kept
            place = out / "cache" / f"requests-{source.digest}.csv"
            keep_plain(Path(source.path), Path(options["trace"]), place)
            case = replace(case, source=replace(source, path=str(place)))
    return Asked(
        case, trace, options["trace"], policies, trials, wanted, launcher, out, tuple(words)
    )


def _case(
    options: Mapping[str, str],
    source: Source,
    trace: Trace,
    policies: tuple[tuple[str, dict[str, Any] | None], ...],
    slo: Mapping[str | None, tuple[float, float]],
    attainment: float,
    **fields: Any,
) -> tuple[Case, dict[str, int]]:
    """The case, which every policy can run, and the settings to try of each policy that is tuned."""
    targets = _targets(slo, trace, attainment)
    load_s, times = fields["load_s"], options.get("iteration_times")
    span_s, tuned_s = split(trace, load_s)
    case = Case(
        source=source, by_class=trace.slo_class is not None, iteration_times=times,
        times_digest="" if times is None else digest_of(Path(times), "iteration_times"),
        targets=targets, span_s=span_s, tuned_s=tuned_s, **fields,
    )  # fmt: skip
    try:
        scenario = case.whole().scenario
        for pool in scenario.fleet.pools:
            iteration_time_model(pool.llm, pool.gpu, pool.tp, data=scenario.iteration_times)
    except (ScenarioError, DataFileError) as error:
        raise Slip(" ".join(str(error).split())) from None
    first = int((trace.arrival_ps < tuned_s * PS_PER_S).sum())
    trials = {name: trials_of(name, first) for name, given in policies if given is None}
    if "trials" in options:
        trials = dict.fromkeys(trials, whole(options, "trials", 1, 1, MOST_TRIALS))
    if trials:
        needs("jinja2", "plotly", "optuna")
    for name, settings in policies:
        if why := able(name, case):
            raise Slip(f"policies = {name!r}: cannot run on one pool of one LLM: {why}")
        if name == "static" and settings and not 1 <= settings[POOL] <= case.most:
            raise Slip(
                f"policies = 'static:{POOL}={settings[POOL]}': must be 1 to {case.most}, the instances "
                "that max_gpus allows"
            )
        if settings is not None:
            _check_settings(name, settings, case)
    return case, trials


def _check_apart(options: Mapping[str, str], key: str, out: Path) -> None:
    """Refuse to write the answer over a file that was given."""
    if key not in options or not Path(options[key]).is_file():
        return
    for name in FILES:
        if (out / name).exists() and (out / name).samefile(options[key]):
            raise Slip(f"out = {str(out)!r}: the answer's {name} would be written over {key}=")


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


def _source(options: Mapping[str, str], folder: Path) -> tuple[Source, Trace]:
    """The trace's file and what it holds; one with other columns is written to `folder` as a plain one."""
    given = Path(options["trace"])
    path, digest = given, digest_of(given, "trace")
    form = options.get("format", "auto")
    if form not in ("auto", *FORMATS):
        raise Slip(f"format = {form!r}: must be one of {','.join(('auto', *FORMATS))}")
    sort, block = flag(options, "sort"), whole(options, "hash_block_tokens", 512, 1, 1_000_000)
    if "columns" in options:
        if "format" in options:
            raise Slip(f"format = {form!r}: not together with columns=")
        columns = columns_of(options["columns"])
        path, form = to_plain(given, columns, folder / "requests.csv"), "plain"
        digest = hashlib.sha256(f"{digest} {options['columns']}".encode()).hexdigest()[:16]
    source = Source(str(path), form, sort, block, digest)
    try:
        return source, replace(source.read(), path=str(given))
    except ValueError as error:
        said = str(error).replace(str(path), str(given))
        raise Slip(f"trace = {options['trace']!r}: {said}") from None


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
            if name == "static" and settings:
                found[name] = _fixed_fleet(text, settings)
                continue
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


def _fixed_fleet(text: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters of a fixed fleet that is given and not searched."""
    made: Any = make_policy("static", **settings)
    if POOL not in settings or not settings.keys() <= {POOL, "batch_limit"}:
        raise Slip(f"policies = {text!r}: must be static:{POOL}=N, perhaps with batch_limit=N")
    return fixed_settings(made.parameters.instances[POOL], made.parameters.batch_limit)


def _hint(name: str, allowed: Sequence[str]) -> str:
    if name == "static":
        return f" (the best fixed fleet is always searched; static:{POOL}=N gives one)"
    near = closest(name, allowed)
    return near if near.startswith(" (") else ""


def _check_settings(name: str, settings: Mapping[str, Any], case: Case) -> None:
    try:
        TUNABLE[name](**settings).reset(case.whole().scenario, 0)
    except PolicyError as error:
        raise Slip(f"policies = {name!r}: {error}") from None


# ---- the answer ----


def advise(asked: Asked) -> Answer:
    """Tune on the first part, judge on the rest, change one thing at a time.

    Raises:
        WorkerLost: a process ended without an answer.
    """
    folder = asked.out / "cache"
    case, settings = _tuned(asked, folder)
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
    limit, start = settings["static"].get("batch_limit"), int(settings["static"][POOL])
    (fixed,) = _each(asked, "fixed fleets", fleets, [(case, limit, start)])
    if missed:
        calls = [(n, settings[n], case, fixed) for n in missed]
        said = _each(asked, "what would keep it", needed, calls)
        would |= dict(zip(missed, said, strict=True))
    ranking = tuple(
        _ranked(name, settings[name], verdicts[name], case, would[name])
        for name in sorted(names, key=lambda n: _rank(n, verdicts[n], case, names))
    )
    changed = _what_ifs(asked, case, ranking) if asked.what_ifs else ()
    question = Question(
        trace=asked.named, requests=len(asked.trace), span_s=case.span_s, tuned_s=case.tuned_s,
        llm=case.llm, gpu=case.gpu, tp=case.tp, load_s=case.load_s, max_gpus=case.max_gpus,
        usd_per_gpu_hour=case.usd_per_gpu_hour, targets=case.targets, words=("advise", *asked.words),
        control_interval_s=INTERVAL_S,
    )  # fmt: skip
    on = runs_on(question, {r.policy: r.spelled for r in ranking})
    ranking = tuple(r.model_copy(update={"runs_on": on[r.policy]}) for r in ranking)
    return Answer(
        version=__version__,
        question=question,
        rests_on=tuple(rests_on(asked.trace, case, settings["static"][POOL], changed)),
        winner=ranking[0].policy,
        ranking=ranking,
        what_ifs=changed,
        fixed=hindsight(fixed, case, limit),
    )


def _fixed(asked: Asked, folder: Path) -> dict[str, Any]:
    """Parameters of the fixed fleet: as given, else the best one."""
    if given := dict(asked.policies).get("static"):
        return given
    with _bar("fixed fleet", None) as advance:
        found = least_fixed(asked.case, asked.target, folder, key_of(asked.case), advance)
    # Where none is enough, the whole fleet comes nearest.
    return fixed_settings(*(found or (asked.case.most, None)))


def _tuned(asked: Asked, folder: Path) -> tuple[Case, dict[str, dict[str, Any]]]:
    """The case with the best fixed fleet as its start, and settings by policy."""
    case, settings = asked.case, {"static": _fixed(asked, folder)}
    case = replace(case, initial=int(settings["static"][POOL]))
    own = key_of(case)
    tuned: dict[str, dict[str, Any]] = {}
    with _bar("tune", sum(asked.trials.values())) as advance:

        def hears(_: Any, count: int) -> None:
            advance(count)

        with crew(asked.launcher, len(asked.trials), hears) as workers:
            for name, trials in asked.trials.items():
                call = (name, case, asked.target, trials, str(folder), own)
                workers.submit(name, tune, *call)
            for count, (name, best) in enumerate(workers, 1):
                tuned[name] = best
                _tell(f"{count} of {len(asked.trials)}: {name} is tuned")
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
    changes = list(changed_cases(case, asked.out / "cache"))
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


def changed_cases(case: Case, folder: Path) -> Iterator[tuple[str, str, Case]]:
    """(group, value, case) of every what-if.

    GPUs are compared by the cards' iteration times of all of them, the one that was asked for included:
    measured ones exist for some, and kinds of times do not compare.

    Args:
        case: as asked.
        folder: where those times are written.
    """
    for load in LOADS:
        yield "load", f"x{load:g}", replace(case, load=load)
    loads_s = dict.fromkeys((case.load_s / 2, 2 * case.load_s, USUAL_LOAD_S))
    for load_s in loads_s:
        if load_s != case.load_s:
            yield "loading", f"{load_s:g} s", replace(case, load_s=load_s)
    others = [g for g in known_gpus() if g != case.gpu and case.tp in fitting_tp(case.llm, g)]
    by_cards = by_rooflines(case, [case.gpu, *others], folder)
    for gpu in (case.gpu, *others) if others else ():
        yield "gpu", gpu, replace(by_cards, gpu=gpu)
    for value, factor in (("half", TIGHTER), ("double", LOOSER)):
        targets = tuple(
            t.model_copy(update={"ttft_s": factor * t.ttft_s, "itl_s": factor * t.itl_s})
            for t in case.targets
        )
        yield "slo", value, replace(case, targets=targets)


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
    """A bar of progress on a terminal, a line elsewhere; gives what advances it."""
    from tqdm import tqdm

    runs = "" if total is None else f": {total:,} run{'' if total == 1 else 's'}"
    _tell(f"{what}{runs} ...")
    with tqdm(desc=what, total=total, unit="run", disable=None, leave=False) as bar:
        yield bar.update


def _tell(text: str) -> None:
    """A line of progress where there is no terminal to show a bar."""
    if not sys.stderr.isatty():
        complain(f"advise: {text}")


if __name__ == "__main__":
    sys.exit(main())
