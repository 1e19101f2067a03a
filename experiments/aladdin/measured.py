"""Measured iterations that Aladdin's Figures 6 and 7 hold its models against, and errors of a fit to them.

    python -m experiments.aladdin.measured data=DIRECTORY

writes the table that ships beside this module from the public data sets of docs/calibration.md: means
over repetitions, of the LLMs that the paper serves, for the batches and contexts of its range. Two kinds
of A100 times, as everywhere here: end-to-end (whole iterations) and composed (measured kernels, added
up). On V100 nothing was measured: its points are the roofline's, on the same grid.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from baselines.aladdin.performance import LinearFit, fit_line
from llmscale_env._cli import Slip, check_file, parse_options, run_command
from llmscale_env._writing import replace_file
from llmscale_env.cluster.iteration_time import iteration_time_model

if TYPE_CHECKING:
    from llmscale_env.cluster.measurements import Measurements

TABLE = Path(__file__).parent / "measured_iterations.csv"
COLUMNS = ("llm", "gpu", "tp", "kind", "part", "requests", "tokens_each", "seconds")

GPU = "a100-80gb"
DEGREES = {"llama-2-7b": (1,), "llama-2-13b": (1, 2), "llama-2-70b": (2, 4)}
"""Table 3's for A100 and the next one, where a worker's all-reduces come in or grow."""

PREFILL_REQUESTS = (1, 2, 4, 8, 16)
PREFILL_TOKENS = 8192
DECODE_REQUESTS = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128)
SOURCES = (
    "source: end-to-end: Mutinifni/splitwise-sim, data/perf_model.csv (MIT, (c) 2024 Pratyush Patel)",
    "source: composed: kernels of microsoft/vidur, data/profiling (MIT, (c) Microsoft Corporation)",
    "kind: means over repeated runs of a configuration (end-to-end), sums of kernels' medians (composed)",
    "columns: tokens_each is the prompt (prefill), or the mean context (decode), of a request",
)

SETS = (
    ("llama-2-7b", "a100-80gb", 1, "composed"),
    ("llama-2-13b", "a100-80gb", 1, "composed"),
    ("llama-2-13b", "a100-80gb", 2, "composed"),
    ("llama-2-70b", "a100-80gb", 2, "composed"),
    ("llama-2-70b", "a100-80gb", 2, "end-to-end"),
    ("llama-2-70b", "a100-80gb", 4, "end-to-end"),
    ("llama-2-7b", "v100-32gb", 1, "roofline"),
    ("llama-2-13b", "v100-32gb", 2, "roofline"),
)
"""What Figures 6 and 7 show: LLM, GPU, degree, kind."""

KINDS = {
    "end-to-end": "measured end to end",
    "composed": "composed of measured kernels",
    "roofline": "roofline: not measured",
}

NO_V100 = "no V100 was measured: its times are a roofline's, and a line through them says nothing of the GPU"

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Points:
    """Iterations of one (LLM, GPU, degree) and part.

    Attributes:
        requests: (n,) of the batch.
        tokens_each: (n,) prompt, or mean context, of each.
        seconds: (n,) of the iteration.
    """

    requests: Ints
    tokens_each: Floats
    seconds: Floats

    @property
    def total(self) -> Floats:
        """(n,) tokens of all requests together."""
        total: Floats = self.requests * self.tokens_each
        return total

    def only(self, keep: NDArray[np.bool_]) -> Points:
        """Those of a mask."""
        return Points(self.requests[keep], self.tokens_each[keep], self.seconds[keep])


def points(llm: str, gpu: str, tp: int, kind: str, part: str) -> Points:
    """Measured points, or for "roofline" those of the cards.

    Args:
        llm, gpu, tp: of a worker.
        kind: "end-to-end", "composed" or "roofline".
        part: "prefill" or "decode".

    Raises:
        LookupError: nothing of the kind was measured.
    """
    if kind == "roofline":
        return _roofline(llm, gpu, tp, part)
    rows = [
        line.split(",") for line in TABLE.read_text(encoding="utf-8").splitlines()
        if line.startswith(f"{llm},{gpu},{tp},{kind},{part},")
    ]  # fmt: skip
    if not rows:
        raise LookupError(f"{llm} on {tp} x {gpu}: no {kind} times of {part}")
    requests, tokens, seconds = np.array([row[5:] for row in rows], np.float64).T
    return Points(requests.astype(np.int64), tokens, seconds)


def _roofline(llm: str, gpu: str, tp: int, part: str) -> Points:
    model = iteration_time_model(llm, gpu, tp, "roofline")
    prompts = (128, 256, 512, 1024, 1536, 2048, 3072, 4096)
    if part == "prefill":
        grid = [(b, t // b) for t in prompts for b in PREFILL_REQUESTS if t // b >= 32]
        seconds = [model.prefill_s(b * t, float(b * t * t)) for b, t in grid]
    else:
        grid = [(b, t) for t in (64, *prompts) for b in DECODE_REQUESTS]
        seconds = [model.decode_s(b, b * t) for b, t in grid]
    requests, tokens = np.array(grid, np.int64).T
    return Points(requests, tokens.astype(np.float64), np.array(seconds))


@dataclass(frozen=True)
class Checked:
    """A fit and how it does on its points.

    Attributes:
        fit: least squares.
        error: (n,) predicted over measured, less 1, of the fit to all points.
        held_out: (n,) the same with all points of the same configuration left out of the fit; NaN
            where the others do not tell the coefficients apart.
    """

    fit: LinearFit
    error: Floats
    held_out: Floats


def check(columns: dict[str, Floats], seconds: Floats, group: NDArray) -> Checked:
    """Fit a line without negative coefficients and hold it against its points.

    Args:
        columns: name to (n,) values.
        seconds: (n,).
        group: (n,) configuration, left out as a whole in turn.

    Raises:
        ValueError: as `fit_line`.
    """
    x = np.column_stack(list(columns.values()))
    fit = fit_line(columns, seconds)
    held_out = np.full(len(seconds), np.nan)
    for one in np.unique(group):
        out = group == one
        try:
            other = fit_line({k: v[~out] for k, v in columns.items()}, seconds[~out])
        except ValueError:
            continue
        held_out[out] = other.predict(x[out]) / seconds[out] - 1
    return Checked(fit, fit.predict(x) / seconds - 1, held_out)


# ---- the table ----


def table_lines(sets: list[Measurements]) -> list[str]:
    """The lines of the table, from what `read_calibration_dir` reads."""
    lines = [f"# {text}" for text in SOURCES] + [",".join(COLUMNS)]
    for data in sets:
        if data.gpu != GPU or data.tp not in DEGREES.get(data.llm, ()):
            continue
        prefill = data.of("prefill")
        keep = prefill.scored & np.isin(prefill.chunks, PREFILL_REQUESTS)
        keep &= (prefill.total_tokens <= PREFILL_TOKENS) & (prefill.cached_tokens == 0)
        prefill = prefill.only(keep)
        decode = data.of("decode")
        decode = decode.only(decode.scored & np.isin(decode.decode_requests, DECODE_REQUESTS))
        each = decode.context_tokens / decode.decode_requests
        head = f"{data.llm},{data.gpu},{data.tp},{data.kind}"
        for part, requests, tokens, seconds in (
            ("prefill", prefill.chunks, prefill.chunk_tokens, prefill.seconds),
            ("decode", decode.decode_requests, each, decode.seconds),
        ):
            lines += [
                f"{head},{part},{b},{t:g},{s:.6g}"
                for b, t, s in zip(requests, tokens, seconds, strict=True)
            ]
    return lines


def main(argv: list[str] | None = None) -> int:
    """Write the table; 2 after a slip, which is named in one line."""
    return run_command("measured", __doc__, argv, _write_table)


def _write_table(words: list[str]) -> int:
    from llmscale_env.cluster.readers import RawDataError, read_calibration_dir

    options = parse_options(words, ("data", "out"))
    if "data" not in options:
        raise Slip("give data=DIRECTORY")
    out = Path(options.get("out", TABLE))
    check_file("out", out)
    try:
        # The shipped table, and Aladdin's figures from it, have modelled attention everywhere.
        sets = read_calibration_dir(Path(options["data"]), measured_attention=False)
        lines = table_lines(sets)
    except RawDataError as error:
        raise Slip(str(error)) from None

    def write(part: Path) -> None:
        part.write_text("\n".join(lines) + "\n", encoding="utf-8")

    replace_file(out, write)
    print(f"written: {out} ({len(lines) - len(SOURCES) - 1} points)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
