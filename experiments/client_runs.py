"""What a fit to a client's latencies reaches on runs of real vLLM servers.

    python -m experiments.client_runs [data=DIRECTORY] [search=global|local] [seed=0] [out=DIRECTORY]

Our own runs on an H200 (`experiments/data/vllm_h200`): five with Poisson arrivals are fitted on one half
of their requests; runs with other settings and other loads are predicted. With `data=`, a folder
that holds `reference/`, both measured runs of vLLM 0.11 as well (Llama-2-7B and CodeLlama-34B on an H100).
Each of these is fitted on one half of its requests, in blocks and in time, and predicts the other through
the cards. Prints errors of requests, writes `client_runs.csv` and a picture per fit.

docs/calibrate.md says what the numbers mean.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from experiments.output import RESULTS, text_table, write_csv
from llmscale_env._cli import (
    Slip,
    check_folder,
    complain,
    needs,
    one_of,
    parse_options,
    run_command,
    whole,
)
from llmscale_env.calibrate.client_report import draw
from llmscale_env.calibrate.fit import SEARCHES, Calibration, Score, calibrate, scaled, score
from llmscale_env.calibrate.observed import Observed, ObservedError, read_observed
from llmscale_env.calibrate.replay import Replay, Server
from llmscale_env.cluster.roofline import roofline_model

OURS = Path(__file__).parent / "data" / "vllm_h200" / "requests.csv.gz"


@dataclass(frozen=True)
class Run:
    """A measured run: its file below `data`, what was served on what, with which settings."""

    file: str
    llm: str
    gpu: str
    server: Server


REFERENCE = {
    "7B": Run(
        "vllm_0_11_llama2_7b_tp1.csv", "llama-2-7b", "h100-80gb", Server(4096, 256, 119_008, False)
    ),
    "34B": Run(
        "vllm_0_11_codellama_34b_tp1.csv",
        "codellama-34b",
        "h100-80gb",
        Server(4096, 256, 40_592, False),
    ),
}
"""vLLM 0.11, which does not schedule asynchronously by default; settings and KV cache by the servers' logs
(the README beside the files)."""

H200 = Run(OURS.name, "llama-3.1-8b", "h200-141gb", Server(8192, 1024, 919_824))
FITTED = ("sg35_r3.15", "sg70_r6.30", "sg100_r9.00", "az65_r11.22", "az100_r17.27")
PREDICTED: dict[str, tuple[str, dict[str, Any]]] = {
    "burst_az": ("250 requests at once", {}),
    "budget512_r8.63": ("512 tokens a step", {"max_num_batched_tokens": 512}),
    "maxseqs24_r5.40": ("at most 24 running", {"max_num_seqs": 24}),
    "pfx_off_r4.50": (
        "a KV cache of 152,000 tokens",
        {"kv_tokens": 9_500 * 16, "enable_prefix_caching": False},
    ),
    "sg70_r0.63": ("0.63 requests/s", {}),
}
"""Runs of ours that are not fitted: what tells each apart, and the settings that it has of its own."""

HEAD = (
    *("fitted to", "scored on", "metric", "n", "median |error|", "p90 |error|", "median error"),
    *("error of p50", "error of p90", "error of p99", "outside"),
)


def rows_of(fitted: str, scored: str, of: Score, outside: int) -> Iterator[tuple[object, ...]]:
    """Rows below `HEAD`, errors in per cent."""
    for metric, row in of.items():
        quantiles = [b / a - 1 for a, b in zip(row.measured, row.simulated, strict=True)]
        errors = (row.median, row.p90, row.bias, *quantiles)
        yield (fitted, scored, metric, row.n, *(round(100 * e, 1) for e in errors), outside)


class Runs:
    """All fits of the experiment, with their rows and pictures.

    Attributes:
        rows: below `HEAD`, as far as it has come.
    """

    def __init__(self, search: str, seed: int, out: Path) -> None:
        self._search, self._seed = search, seed
        self._out = out
        self.rows: list[tuple[object, ...]] = []

    def fit(self, name: str, run: Run, observed: Observed, split: str) -> Calibration:
        """Fit one half of a run and score the other."""
        complain(f"{name}, {split}: fitting {len(observed)} requests")
        start = roofline_model(run.llm, run.gpu)
        fit = calibrate(
            observed, start, run.server, split=split, search=self._search, seed=self._seed
        )
        if split == "blocks":
            self.rows += rows_of(
                "the cards alone", f"{name}, held out", fit.scores["cards alone"], 0
            )
        self.rows += rows_of(
            f"{name}, {split}", f"{name}, held out", fit.scores["held out"], fit.n_outside
        )
        path = self._out / f"client_runs_{name}_{split}.png"
        groups = {"held out": fit.held_out, "fitted": fit.fitted}
        draw(observed, fit.replayed, groups, f"{name} ({run.llm} on {run.gpu}), {split}", path)
        return fit

    def predict(
        self, name: str, fit: Calibration, scored: str, run: Run, observed: Observed
    ) -> None:
        """Score a fit on a run that it has not seen."""
        model = scaled(roofline_model(run.llm, run.gpu), fit.parameters)
        replayed = Replay(observed, run.server).run(model, fit.parameters.front_end)
        outside = fit.range.outside(observed, replayed.largest_batch()) & observed.believed
        of = score(observed, replayed, observed.believed)
        self.rows += rows_of(name, scored, of, int(outside.sum()))

    def ours(self) -> None:
        """The H200 of `experiments/data/vllm_h200`."""
        everything = read_observed(OURS)
        fit = self.fit("H200", H200, everything.only(FITTED), "blocks")
        for run, (name, settings) in PREDICTED.items():
            server = replace(H200.server, **settings)
            observed = everything.only([run])
            self.predict("H200, blocks", fit, name, replace(H200, server=server), observed)

    def reference(self, data: Path) -> None:
        """Both runs of vLLM 0.11, and each from the other."""
        seen = {name: read_observed(data / run.file) for name, run in REFERENCE.items()}
        fits = {}
        for name, run in REFERENCE.items():
            self.fit(name, run, seen[name], "later")
            fits[name] = self.fit(name, run, seen[name], "blocks")
        for name, other in (("7B", "34B"), ("34B", "7B")):
            self.predict(f"{name}, blocks", fits[name], other, REFERENCE[other], seen[other])


def main(words: Sequence[str] | None = None) -> int:
    """Run the command; 0 when done, 2 for a slip."""
    return run_command("client_runs", __doc__, words, _run, wordless=True)


def _run(words: list[str]) -> int:
    options = parse_options(words, ("data", "search", "seed", "out"))
    search = one_of(options, "search", SEARCHES)
    seed = whole(options, "seed", 0, 0, 2**31 - 1)
    data = Path(options["data"]) / "reference" if "data" in options else None
    if data is not None and not data.is_dir():
        raise Slip(f"data = {options['data']!r}: has no folder 'reference'")
    out = Path(options.get("out", RESULTS / "client_runs"))
    needs("matplotlib")
    check_folder("out", out)
    runs = Runs(search, seed, out)
    try:
        runs.ours()
        if data is not None:
            runs.reference(data)
    except ObservedError as error:
        raise Slip(f"data = {options.get('data')!r}: {error}") from None
    print(text_table(HEAD, runs.rows))
    print("errors in per cent; outside: scored requests beyond what was fitted (extrapolated)")
    print(f"written: {write_csv(out / 'client_runs.csv', HEAD, runs.rows)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
