"""Fit iteration-time models to measurements, report how good they are, draw them.

    python -m llmscale_env.calibrate report [format=text|markdown] [data=FILE.json]
    python -m llmscale_env.calibrate data=DIRECTORY [out=FILE.json] [plots=DIRECTORY]
    python -m llmscale_env.calibrate csv=FILE.csv llm=NAME gpu=NAME tp=N [out=FILE.json]
                                     [plots=DIRECTORY]

The first prints the fit report of the data file that ships with the package (or of another one).
The second fits the public data sets again and writes such a file. The third fits your own
measurements; its file is then used with `iteration_time_model(..., data="FILE.json")`.
docs/calibration.md says what the columns of a CSV are and where the public data come from.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmscale_env._cli import (
    Slip,
    check_file,
    check_folder,
    needs,
    parse_options,
    run_command,
)
from llmscale_env._writing import write_text
from llmscale_env.cluster.cards import UnknownCardError, gpu_card, llm_card
from llmscale_env.cluster.iteration_data import (
    SCHEMA_VERSION,
    DataFileError,
    load_models,
    model_to_json,
    read_data_file,
)
from llmscale_env.cluster.iteration_model import FitError, IterationTimeModel
from llmscale_env.cluster.measurements import PARTS

if TYPE_CHECKING:
    from llmscale_env.cluster.measurements import Measurements

MODES: dict[str, tuple[str, ...]] = {
    "report": ("format", "data"),
    "data": ("data", "out", "plots"),
    "csv": ("csv", "llm", "gpu", "tp", "out", "plots"),
}
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
        {"report": _report, "data": _fit_public, "csv": _fit_user}[mode](options)
    except (UnknownCardError, DataFileError, RawDataError, FitDataError) as error:
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
        modes = [m for m in ("data", "csv") if m in options]
        if len(modes) != 1:
            raise Slip("give one of: report, data=DIRECTORY, csv=FILE; see --help")
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
    from llmscale_env.cluster.fitting import fit_all
    from llmscale_env.cluster.readers import read_calibration_dir
    from llmscale_env.cluster.roofline_fit import fit_roofline

    directory = Path(options["data"])
    sets = read_calibration_dir(directory)
    models = fit_all(sets)
    roofline = fit_roofline(read_calibration_dir(directory, measured_attention=False))
    print(report(models, roofline))
    _finish(models, sets, options, roofline)


def _fit_user(options: dict[str, str]) -> None:
    from llmscale_env.cluster.fitting import fit_all
    from llmscale_env.cluster.readers import read_user_csv

    missing = [key for key in ("llm", "gpu", "tp") if key not in options]
    if missing:
        raise Slip(f"csv=... needs {', '.join(missing)}")
    llm, gpu = llm_card(options["llm"]), gpu_card(options["gpu"])
    tp = options["tp"]
    if not (tp.isdecimal() and len(tp) < 10 and llm.fits_tp(int(tp))):
        raise Slip(f"tp = {tp!r}: must be a positive divisor of the {llm.heads} heads")
    data = read_user_csv(Path(options["csv"]), llm=llm.name, gpu=gpu.name, tp=int(tp))
    models = fit_all([data])
    print(report(models, None))
    _finish(models, [data], options, None)


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
    path: Path, models: tuple[IterationTimeModel, ...], roofline: dict[str, Any] | None = None
) -> None:
    """Write a data file, whole or not at all.

    Raises:
        OSError: the directory cannot be written to.
    """
    content: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "written_by": "python -m llmscale_env.calibrate",
    }
    if roofline is not None:
        content["roofline"] = _rounded(roofline)
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
    main_table = _table(head, rows, markdown)
    return f"{main_table}\n\n{_table(harder_head, harder, markdown)}" if harder else main_table


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]], markdown: bool) -> str:
    if markdown:
        lines = [head, ("---",) * len(head), *rows]
        return "\n".join("| " + " | ".join(line) + " |" for line in lines)
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    return "\n".join(
        "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip()
        for row in [head, *rows]
    )


def _percent(error: FitError | None) -> str:
    return "-" if error is None else f"{100 * error.mean:.1f} / {100 * error.worst:.0f} %"


if __name__ == "__main__":
    sys.exit(main())
