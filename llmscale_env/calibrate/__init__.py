"""Fit iteration-time models to measurements, report how good they are, draw them.

    llmscale calibrate report [format=text|markdown] [data=FILE.json]
    llmscale calibrate data=DIRECTORY [out=FILE.json] [plots=DIRECTORY]
    llmscale calibrate csv=FILE.csv llm=NAME gpu=NAME tp=N [out=FILE.json] [plots=DIRECTORY]
    llmscale calibrate observed=RUN llm=NAME gpu=NAME tp=N [out=FILE.json] [plots=DIRECTORY]
                       [max_num_batched_tokens=N] [max_num_seqs=N] [kv_tokens=N]
                       [async_scheduling=true|false] [enable_prefix_caching=true|false]
                       [split=blocks|later] [search=global|local] [warm_up=1] [seed=0]
                       [runs=NAME,NAME] [also=LLM,LLM:TP] [data=FILE.json]
    (or: python -m llmscale_env.calibrate ...)

The first prints the fit report of the data file that ships with the package (or of another one).
The second fits the public data sets again and writes such a file. The third fits your own
measurements of iterations. The fourth fits what a client saw: the result of `vllm bench serve` or
of GuideLLM, OpenTelemetry spans or a plain CSV; with `data=` it fits nothing and scores that file
against the run. Files of the last two are used with `iteration_times=FILE.json` of other commands,
with `iteration_time_model(..., data="FILE.json")`, and in a scenario as `iteration_times:
FILE.json`. docs/calibration.md says what the columns of a CSV are and where the public data come
from, docs/calibrate.md how latencies of a client are fitted.

Examples:
    llmscale calibrate observed=run.json llm=llama-3.1-8b gpu=h100-80gb tp=1 out=my_gpu.json
    llmscale calibrate observed=other.json llm=llama-3.1-8b gpu=h100-80gb tp=1 data=my_gpu.json
    llmscale calibrate csv=iterations.csv llm=mistral-7b gpu=a10 tp=1 out=my_gpu.json plots=pictures
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmscale_env._cli import (
    Slip,
    check_file,
    check_folder,
    complain,
    flag,
    needs,
    one_of,
    parse_options,
    run_command,
    table,
    whole,
)
from llmscale_env._writing import write_text
from llmscale_env.cluster.cards import (
    GpuCard,
    LlmCard,
    UnknownCardError,
    gpu_card,
    llm_card,
)
from llmscale_env.cluster.iteration_data import (
    SCHEMA_VERSION,
    DataFileError,
    load_models,
    model_to_json,
    read_data_file,
)
from llmscale_env.cluster.iteration_model import FitError, IterationTimeModel
from llmscale_env.cluster.iteration_time import NoSuchModelError, iteration_time_model
from llmscale_env.cluster.measurements import PARTS

if TYPE_CHECKING:
    from llmscale_env.calibrate.observed import Observed
    from llmscale_env.calibrate.replay import Server
    from llmscale_env.cluster.measurements import Measurements

MODES: dict[str, tuple[str, ...]] = {
    "report": ("format", "data"),
    "data": ("data", "out", "plots"),
    "csv": ("csv", "llm", "gpu", "tp", "out", "plots"),
    "observed": (
        "observed", "llm", "gpu", "tp", "out", "plots", "max_num_batched_tokens", "max_num_seqs", "kv_tokens",
        "async_scheduling", "enable_prefix_caching", "split", "search", "warm_up", "seed", "runs", "also",
        "data",
    ),
}  # fmt: skip
HARDER = {
    "decode_tiles": "decode, whole tiles of 8 out",
    "prefill_alone": "prefill, all of a token count out, no siblings",
    "mixed_derived": "mixed if it were derived",
    "not_fitted": "prompts of batches, not fitted",
}
"""Tests beyond the first table, by their names in `IterationTimeModel.errors`."""

SIGNIFICANT_DIGITS = 6
"""Of the numbers written: far below the fit's error, and the same on every machine's last bits."""


def main(argv: list[str] | None = None) -> int:
    """Run the command line; 0 if all went well, 2 after a slip, which is named in one line."""
    return run_command("calibrate", __doc__, argv, _run)


def _run(words: list[str]) -> int:
    from llmscale_env.cluster.fitting import FitDataError
    from llmscale_env.cluster.measurements import RawDataError

    mode, options = _parse(words)
    if "out" in options:
        check_file("out", Path(options["out"]))
    if "plots" in options:
        needs("matplotlib")
        check_folder("plots", Path(options["plots"]))
    try:
        work = {"report": _report, "data": _fit_public, "csv": _fit_user, "observed": _of_client}
        work[mode](options)
    except (UnknownCardError, DataFileError, RawDataError, FitDataError, NoSuchModelError) as error:
        raise Slip(str(error)) from None
    return 0


def _parse(words: list[str]) -> tuple[str, dict[str, str]]:
    mode = "report" if "report" in words else ""
    for word in words:
        if "=" not in word and word != "report":
            raise Slip(f"{word!r}: expected 'report' or key=value; see --help")
    keys = dict.fromkeys(key for options in MODES.values() for key in options)
    options = parse_options([word for word in words if word != "report"], keys, mode)
    if not mode:
        modes = [m for m in ("observed", "csv", "data") if m in options]
        if len(modes) != 1 and modes != ["observed", "data"]:
            raise Slip("give one of: report, data=DIRECTORY, csv=FILE, observed=RUN; see --help")
        mode = modes[0]
    for key in options:
        if key not in MODES[mode]:
            raise Slip(f"{key} is no option of {mode}; there are: {', '.join(MODES[mode])}")
    return mode, options


def _report(options: dict[str, str]) -> None:
    style = options.get("format", "text")
    if style not in ("text", "markdown"):
        raise Slip(f"format = {style!r}: must be text or markdown")
    path = options.get("data")
    roofline = read_data_file(path).get("roofline")
    models = load_models(path)
    try:
        text = report(models, roofline, markdown=style == "markdown")
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise Slip(f"data = {path}: roofline: not as this version writes it ({error})") from None
    print(text)


def _fit_public(options: dict[str, str]) -> None:
    from tqdm import tqdm

    from llmscale_env.cluster.fitting import fit, siblings_of
    from llmscale_env.cluster.readers import read_calibration_dir
    from llmscale_env.cluster.roofline_fit import fit_roofline

    directory = Path(options["data"])
    sets = read_calibration_dir(directory)
    shown = tqdm(sets, unit="set", disable=None, leave=False)
    models = tuple(fit(data, siblings_of(data, sets)) for data in shown)
    roofline = fit_roofline(read_calibration_dir(directory, measured_attention=False))
    print(report(models, roofline))
    _finish(models, sets, options, roofline)


def _fit_user(options: dict[str, str]) -> None:
    from llmscale_env.cluster.fitting import fit_all
    from llmscale_env.cluster.readers import read_user_csv

    llm, gpu, tp = _cards("csv", options)
    data = read_user_csv(Path(options["csv"]), llm=llm.name, gpu=gpu.name, tp=tp)
    models = fit_all([data])
    print(report(models, None))
    _finish(models, [data], options, None)


def _cards(mode: str, options: dict[str, str]) -> tuple[LlmCard, GpuCard, int]:
    """What was measured: LLM, GPU, tensor-parallel degree."""
    missing = [key for key in ("llm", "gpu", "tp") if key not in options]
    if missing:
        raise Slip(f"{mode}=... needs {', '.join(missing)}")
    llm, gpu = llm_card(options["llm"]), gpu_card(options["gpu"])
    return llm, gpu, _degree("tp", options["tp"], llm)


def _degree(key: str, tp: str, llm: LlmCard) -> int:
    if not (tp.isdecimal() and len(tp) < 10 and llm.fits_tp(int(tp))):
        raise Slip(f"{key} = {tp!r}: must be a positive divisor of the {llm.heads} heads")
    return int(tp)


def _of_client(options: dict[str, str]) -> None:
    """Fit the latencies that a client saw, or score a data file against them."""
    from llmscale_env.calibrate.client_report import load_lines
    from llmscale_env.calibrate.fit import SEARCHES, SPLITS
    from llmscale_env.calibrate.observed import ObservedError, read_observed
    from llmscale_env.cluster.kv import DoesNotFitError

    llm, gpu, tp = _cards("observed", options)
    fitting = [key for key in ("also", "out", "split", "search", "seed") if key in options]
    if "data" in options and fitting:
        raise Slip(f"{fitting[0]} is no option of observed=RUN data=FILE, which fits nothing")
    if "also" in options and "out" not in options:
        raise Slip(
            f"also = {options['also']!r}: needs out=FILE.json, where those times are written"
        )
    search = one_of(options, "search", SEARCHES)
    split = one_of(options, "split", SPLITS)
    seed = whole(options, "seed", 0, 0, 2**31 - 1)
    warm_up = whole(options, "warm_up", 1, 0, 10**6)
    others = [_other(word) for word in options.get("also", "").split(",") if word]
    try:
        server, said = _server(options, llm, gpu, tp)
        observed = read_observed(Path(options["observed"]), warm_up=warm_up)
        if "runs" in options:
            observed = observed.only(options["runs"].split(","))
        head = [*load_lines(observed), said, ""]
        if "data" in options:
            _score_file(options, observed, server, (llm, gpu, tp), head)
        else:
            how = (split, search, seed)
            _fit_client(options, observed, server, (llm, gpu, tp), how, others, head)
    except (ObservedError, DoesNotFitError) as error:
        raise Slip(str(error)) from None


def _other(word: str) -> tuple[LlmCard, int]:
    """An LLM of `also=`, with its degree."""
    name, colon, tp = word.rpartition(":")
    if not (colon and tp.isdecimal()):
        name, tp = word, "1"
    try:
        llm = llm_card(name)
    except UnknownCardError as error:
        raise Slip(f"also = {word!r}: {error}") from None
    return llm, _degree("also", tp, llm)


def _server(options: dict[str, str], llm: LlmCard, gpu: GpuCard, tp: int) -> tuple[Server, str]:
    """The settings that were given, vLLM's own for the others, and a line that says which are which."""
    from llmscale_env.calibrate.replay import Server
    from llmscale_env.cluster.kv import kv_capacity_tokens

    defaults = Server.of_gpu(gpu)
    given: dict[str, Any] = {
        key: whole(options, key, 1, 1, most)
        for key, most in (
            ("max_num_batched_tokens", 2**20),
            ("max_num_seqs", 4096),
            ("kv_tokens", 2**31 - 1),
        )
        if key in options
    }
    for key in ("async_scheduling", "enable_prefix_caching"):
        if key in options:
            given[key] = flag(options, key, True)
    if "kv_tokens" not in given:
        defaults = replace(defaults, kv_tokens=kv_capacity_tokens(llm, gpu, tp))
    server = replace(defaults, **given)
    origin = {"kv_tokens": "by the cards"}
    said = ", ".join(
        f"{key} {value}{'' if key in given else ' (' + origin.get(key, 'default of vLLM') + ')'}"
        for key, value in vars(server).items()
    )
    return server, f"server: {llm.name} on {tp} x {gpu.name}, {said}"


def _fit_client(
    options: dict[str, str],
    observed: Observed,
    server: Server,
    cards: tuple[LlmCard, GpuCard, int],
    how: tuple[str, str, int],
    others: list[tuple[LlmCard, int]],
    head: list[str],
) -> None:
    from llmscale_env.calibrate.client_report import draw, fit_lines
    from llmscale_env.calibrate.fit import calibrate, scaled

    llm, gpu, tp = cards
    split, search, seed = how
    start = iteration_time_model(llm, gpu, tp, "roofline")
    from tqdm import tqdm

    how_far: dict[str, Any] = {"unit": " replays", "disable": None, "leave": False}
    with tqdm(**how_far) as bar:
        fit = calibrate(
            *(observed, start, server),
            split=split,
            search=search,
            seed=seed,
            say=complain,
            after_each=bar.update,
        )
    print("\n".join([*head, *fit_lines(fit)]))
    source = f"cards, at the shares fitted to {llm.name} tp {tp} ({observed.name})"
    predicted = [
        scaled(iteration_time_model(card, gpu, degree, "roofline"), fit.parameters, source)
        for card, degree in others
    ]
    if "out" in options:
        beside = {"calibration": fit.as_json()}
        write_models(Path(options["out"]), (fit.model, *predicted), beside=beside)
        print(f"\nwritten: {options['out']}")
    if "plots" in options:
        groups = {"held out": fit.held_out, "fitted": fit.fitted}
        title = f"{llm.name} on {tp} x {gpu.name}: {observed.name}, replayed with the times fitted"
        path = Path(options["plots"]) / _picture(llm, gpu, tp)
        print(f"drawn: {draw(observed, fit.replayed, groups, title, path)}")


def _score_file(
    options: dict[str, str],
    observed: Observed,
    server: Server,
    cards: tuple[LlmCard, GpuCard, int],
    head: list[str],
) -> None:
    """How far a data file's times are from a run that it was not fitted to."""
    from llmscale_env.calibrate.client_report import draw, range_lines, score_lines
    from llmscale_env.calibrate.fit import Range, score
    from llmscale_env.calibrate.replay import FrontEnd, Replay

    llm, gpu, tp = cards
    model = iteration_time_model(llm, gpu, tp, data=options["data"])
    kept = read_data_file(options["data"]).get("calibration")
    try:
        at = {} if kept is None else kept["parameters"]
        front = FrontEnd(float(at.get("delay_s", 0)), float(at.get("delay_per_token_s", 0)))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise Slip(
            f"data = {options['data']}: calibration: not as this version writes it ({error})"
        ) from None
    replayed = Replay(observed, server).run(model, front)
    scores = {"all": score(observed, replayed, observed.believed)}
    print("\n".join([*head, model.describe(), "", *score_lines(scores)]))
    if model.max_batch:
        covered = Range(model.max_batch, model.max_context_tokens, model.max_prefill_tokens)
        outside = covered.outside(observed, replayed.largest_batch()) & observed.believed
        print("\n".join(range_lines(covered, int(outside.sum()), int(observed.believed.sum()))))
    else:
        print("nothing was measured for this pair: every request is EXTRAPOLATED from the cards")
    if "plots" in options:
        groups = {"all": observed.believed}
        title = f"{llm.name} on {tp} x {gpu.name}: {observed.name}, replayed with {options['data']}"
        path = Path(options["plots"]) / _picture(llm, gpu, tp)
        print(f"drawn: {draw(observed, replayed, groups, title, path)}")


def _picture(llm: LlmCard, gpu: GpuCard, tp: int) -> str:
    return f"observed_{llm.name}_{gpu.name}_tp{tp}".replace(".", "-") + ".png"


def _finish(
    models: tuple[IterationTimeModel, ...],
    sets: list[Measurements],
    options: dict[str, str],
    roofline: dict[str, Any] | None,
) -> None:
    if "out" in options:
        write_models(Path(options["out"]), models, roofline)
        print(f"\nwritten: {options['out']}")
    if "plots" in options:
        from llmscale_env.cluster.plotting import draw_fits

        for path in draw_fits(models, sets, Path(options["plots"])):
            print(f"drawn: {path}")


def write_models(
    path: Path,
    models: tuple[IterationTimeModel, ...],
    roofline: dict[str, Any] | None = None,
    *,
    beside: dict[str, Any] | None = None,
) -> None:
    """Write a data file, whole or not at all.

    Args:
        path: the file.
        models: iteration times.
        roofline: calibrated efficiencies, with their errors.
        beside: further entries, which readers of iteration times pass over.

    Raises:
        OSError: the directory cannot be written to.
    """
    content: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "written_by": "python -m llmscale_env.calibrate",
    }
    if roofline is not None:
        content["roofline"] = _rounded(roofline)
    content |= _rounded(beside or {})
    content["models"] = [_rounded(model_to_json(model)) for model in models]
    # One model a line: a change of one shows as one line.
    head = {k: v for k, v in content.items() if k != "models"}
    lines = ",\n".join(json.dumps(m) for m in content["models"])
    write_text(path, json.dumps(head)[:-1] + ', "models": [\n' + lines + "\n]}\n")


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{SIGNIFICANT_DIGITS}g}")
    if isinstance(value, dict):
        return {k: _rounded(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_rounded(v) for v in value]
    return value


def report(
    models: tuple[IterationTimeModel, ...],
    roofline: dict[str, Any] | None,
    *,
    markdown: bool = False,
) -> str:
    """The fit report: errors on held-out configurations with the range, then harder tests."""
    head = (
        "LLM", "GPU", "tp", "kind", "fitted", "held out", "decode mean / worst",
        "prefill mean / worst", "mixed mean / worst", "batch", "context", "prefill tokens",
    )  # fmt: skip
    rows = [
        (
            m.llm, m.gpu, str(m.tp), m.kind,
            str(sum(e.n_fitted for p, e in m.errors.items() if p in PARTS)),
            str(sum(e.n_held_out for p, e in m.errors.items() if p in PARTS)),
            _percent(m.errors.get("decode")),
            _percent(m.errors.get("prefill")),
            _percent(m.errors.get("mixed")) if m.mixed_measured else "derived",
            f"1-{m.max_batch}", f"{m.max_context_tokens}", f"{m.max_prefill_tokens}",
        )
        for m in models
    ]  # fmt: skip
    if roofline is not None:
        errors = {part: FitError(**e) for part, e in roofline["errors"].items()}
        rows.append(
            (
                "whole LLMs", "a100-80gb", "1-8", "roofline",
                str(sum(e.n_fitted for e in errors.values())),
                str(sum(e.n_held_out for e in errors.values())),
                _percent(errors["decode"]), _percent(errors["prefill"]), "derived", "-", "-", "-",
            )
        )  # fmt: skip
    harder_head = ("LLM", "GPU", "tp", "kind", *HARDER.values())
    harder = [
        (m.llm, m.gpu, str(m.tp), m.kind, *(_percent(m.errors.get(test)) for test in HARDER))
        for m in models
        if any(test in m.errors for test in HARDER)
    ]
    main_table = table(head, rows, markdown)
    return f"{main_table}\n\n{table(harder_head, harder, markdown)}" if harder else main_table


def _percent(error: FitError | None) -> str:
    return "-" if error is None else f"{100 * error.mean:.1f} / {100 * error.worst:.0f} %"
