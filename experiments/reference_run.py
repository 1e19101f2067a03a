"""The reference run: our engines beside Vidur on the same requests and the same iteration times.

    python -m experiments.reference_run data=DIRECTORY [engine=fast|reference] [out=DIRECTORY]

Eight replicas of Llama 2 70B on four A100-80GB each, round robin, 12 requests/s, 10,000 requests of
the Azure conversation trace of 2023; once prefill first (Vidur's scheduler `vllm`), once with chunked
prefill (`sarathi`). Prints the quantiles of both, writes `reference_run.csv` and `reference_run.png`,
and ends with exit code 1 if any quantile is more than 5 % away.

`data` is a folder that holds `traces/azure_conv_2023.csv.gz`, or the trace itself in any format that
`python -m llmscale_env.traces stats` reads. The trace is public: `python -m llmscale_env.traces fetch
azure-conv-2023` downloads it. docs/validation.md says what the result shows and what it does not.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.output import RESULTS, new_figure, save_figure, text_table, write_csv
from llmscale_env._cli import Slip, check_folder, one_of, parse_options, run_command
from llmscale_env.cluster.iteration_model import IterationTimeModel
from llmscale_env.cluster.iteration_time import iteration_time_model
from llmscale_env.sim.engine import make_engine
from llmscale_env.sim.spec import (
    ClusterSpec,
    PoolSpec,
    ProfileSpec,
    RequestState,
    RouterKind,
    RouteSpec,
)
from llmscale_env.workload.readers import read_trace
from llmscale_env.workload.requests import PS_PER_S, RequestTable

TABLE = Path(__file__).parent / "data" / "vidur_llama2_70b_tp4_quantiles.csv"
TRACE = Path("traces") / "azure_conv_2023.csv.gz"

N_REQUESTS = 10_000
RATE_PER_S = 12.0
SEED = 20240
MAX_PROMPT_TOKENS = 3584
MAX_TOKENS = 4096
TOTAL_TOKENS = (11_794_248, 2_183_388)
"""Prompt and output tokens of the run: a trace that gives others is another trace."""

N_REPLICAS = 8
TP = 4
KV_CAPACITY_TOKENS = 524_288
BATCH_LIMIT = 128
PREFILL_TOKENS = 4096
CHUNK_TOKENS = {"vllm": 0, "sarathi": 512}
"""By Vidur's name of the scheduler."""

WATERMARK = 0.01
"""Share of KV blocks that Vidur keeps free at admission."""

METRICS = ("ttft_s", "tpot_s", "e2e_s")
JUDGED = (0.5, 0.9, 0.99)
TOLERANCE = 0.05
HEAD = ("scheduler", "metric", "quantile", "reference_s", "ours_s", "difference_percent")


@dataclass(frozen=True)
class Comparison:
    """Both runs of one scheduler.

    Attributes:
        scheduler: Vidur's name.
        ours: metric -> (n,) seconds per request.
        reference: metric -> quantile -> seconds.
    """

    scheduler: str
    ours: dict[str, NDArray[np.float64]]
    reference: dict[str, dict[float, float]]

    def rows(self, quantiles: Sequence[float] = JUDGED) -> list[tuple[Any, ...]]:
        """A row of `HEAD` for each metric and quantile."""
        rows = []
        for metric in METRICS:
            for q in quantiles:
                theirs = self.reference[metric][q]
                ours = float(np.quantile(self.ours[metric], q))
                difference = 100 * (ours / theirs - 1)
                rows.append((self.scheduler, metric, f"p{100 * q:g}", theirs, ours, difference))
        return rows


def reference_quantiles(scheduler: str) -> dict[str, dict[float, float]]:
    """Vidur's quantiles, in seconds, by metric and quantile."""
    lines = [line for line in TABLE.read_text("utf-8").splitlines() if not line.startswith("#")]
    return {
        row["metric"]: {
            float(name[1:]) / 100: float(value)
            for name, value in row.items()
            if name[1:2].isdigit()
        }
        for row in csv.DictReader(lines)
        if row["scheduler"] == scheduler
    }


def reference_requests(data: Path) -> RequestTable:
    """The requests of the run, from the Azure conversation trace of 2023.

    Raises:
        Slip: the trace is not there, cannot be read, or is another one.
    """
    path = data / TRACE if data.is_dir() else data
    if not path.is_file():
        raise Slip(
            f"data = {str(data)!r}: there is no trace {path}; give a folder that holds {TRACE}, or "
            "the file that `python -m llmscale_env.traces fetch azure-conv-2023` downloads"
        )
    try:
        trace = read_trace(path, max_rows=N_REQUESTS)
    except (ValueError, OSError) as error:
        raise Slip(f"data: {error}") from None
    prompt = np.clip(trace.input_tokens, 1, MAX_PROMPT_TOKENS)
    output = np.minimum(np.maximum(trace.output_tokens, 2), MAX_TOKENS - prompt)
    totals = (int(prompt.sum()), int(output.sum()))
    if len(prompt) != N_REQUESTS or totals != TOTAL_TOKENS:
        raise Slip(
            f"data: the first {N_REQUESTS} rows of {path} have {totals[0]} prompt and {totals[1]} "
            f"output tokens, must be {TOTAL_TOKENS[0]} and {TOTAL_TOKENS[1]}: another trace?"
        )
    gaps_s = np.random.default_rng(SEED).exponential(1 / RATE_PER_S, N_REQUESTS)
    return RequestTable.build(gaps_s.cumsum(), prompt, output)


def reference_cluster(
    scheduler: str, model: IterationTimeModel | None = None, n_replicas: int = N_REPLICAS
) -> ClusterSpec:
    """Replicas with `model`'s iteration times, else the composed ones of the run's LLM and GPUs.

    Those come from Vidur's own kernel times.
    """
    if model is None:
        model = iteration_time_model("llama-2-70b", "a100-80gb", TP, kind="composed")
    tables = model.profile(max_batch=BATCH_LIMIT, kv_capacity_tokens=KV_CAPACITY_TOKENS)
    pool = PoolSpec(
        llm=0,
        profile=0,
        n_slots=n_replicas,
        gpus=model.tp,
        initial_active=n_replicas,
        batch_limit=BATCH_LIMIT,
        chunk_tokens=CHUNK_TOKENS[scheduler],
        prefill_tokens=PREFILL_TOKENS,
        watermark_tokens=round(WATERMARK * KV_CAPACITY_TOKENS),
    )
    return ClusterSpec(
        profiles=(ProfileSpec(**vars(tables)),),
        pools=(pool,),
        routes=((RouteSpec(kind=RouterKind.ROUND_ROBIN, pools=(0,)),),),
    )


def compare(
    scheduler: str,
    requests: RequestTable,
    engine: str = "fast",
    model: IterationTimeModel | None = None,
) -> Comparison:
    """Simulate the run of one scheduler; `engine` is "fast" or "reference".

    Raises:
        RuntimeError: a request did not finish (in Vidur all do).
    """
    ours = serve(reference_cluster(scheduler, model), requests, engine)
    return Comparison(scheduler, ours, reference_quantiles(scheduler))


def serve(
    cluster: ClusterSpec, requests: RequestTable, engine: str = "fast"
) -> dict[str, NDArray[np.float64]]:
    """Metric -> (n,) seconds per request, all of which are served.

    Raises:
        RuntimeError: a request did not finish.
    """
    simulated = make_engine(cluster, engine=engine)
    simulated.reset(0, requests)
    simulated.advance(0, 86_400 * PS_PER_S)
    results = simulated.results(0)
    unfinished = int((results["state"] != RequestState.FINISHED).sum())
    if unfinished:
        raise RuntimeError(f"{unfinished} of {len(requests)} requests did not finish")
    return metrics(
        (results["first_token_ps"] - requests.arrival_ps) / PS_PER_S,
        (results["finished_ps"] - requests.arrival_ps) / PS_PER_S,
        requests.output_tokens,
    )


def metrics(
    ttft_s: NDArray[np.float64], e2e_s: NDArray[np.float64], output_tokens: NDArray[np.int32]
) -> dict[str, NDArray[np.float64]]:
    """The three metrics by name, from seconds to the first and to the last token."""
    return {"ttft_s": ttft_s, "tpot_s": (e2e_s - ttft_s) / (output_tokens - 1), "e2e_s": e2e_s}


def draw(comparisons: Sequence[Comparison], path: Path) -> Path:
    """Distributions per metric: our curve, Vidur's quantiles as points."""
    figure = new_figure(12, 3.8)
    names = {
        "ttft_s": "time to first token (s)",
        "tpot_s": "time per output token (s)",
        "e2e_s": "end to end (s)",
    }
    labels = {"vllm": "prefill first", "sarathi": "chunked, 512 tokens"}
    for axes, metric in zip(figure.subplots(1, len(METRICS)), METRICS, strict=True):
        for k, comparison in enumerate(comparisons):
            ours = np.sort(comparison.ours[metric])
            share = (np.arange(len(ours)) + 0.5) / len(ours)
            label = labels[comparison.scheduler]
            axes.plot(ours, share, color=f"C{k}", label=f"llmscale, {label}")
            points = comparison.reference[metric]
            axes.plot(
                list(points.values()), list(points), "o", color=f"C{k}", mfc="none",
                label=f"Vidur, {label}",
            )  # fmt: skip
        axes.set_xscale("linear" if metric == "tpot_s" else "log")
        axes.set_xlabel(names[metric])
        axes.grid(alpha=0.3)
    axes = figure.axes[0]
    axes.set_ylabel("share of requests")
    axes.legend(fontsize=8)
    figure.suptitle(
        "Reference run: 8 replicas of Llama 2 70B (TP 4, A100), 12 requests/s, 10,000 requests"
    )
    return save_figure(figure, path)


def main(words: Sequence[str] | None = None) -> int:
    """Run the command; 0 within the tolerance, 1 if not, 2 for a slip."""
    return run_command("reference_run", __doc__, words, _run, wordless=True)


def _run(words: list[str]) -> int:
    options = parse_options(words, ("data", "engine", "out"))
    engine = one_of(options, "engine", ("fast", "reference"))
    if "data" not in options:
        raise Slip(f"data=DIRECTORY is missing: the folder that holds {TRACE}")
    requests = reference_requests(Path(options["data"]))
    out = Path(options.get("out", RESULTS / "reference_run"))
    check_folder("out", out)
    comparisons = [compare(scheduler, requests, engine) for scheduler in CHUNK_TOKENS]
    rows = [row for comparison in comparisons for row in comparison.rows()]
    print(text_table(HEAD, rows))
    worst = max(abs(row[-1]) for row in rows)
    within = worst <= 100 * TOLERANCE
    verdict = "all within" if within else "NOT all within"
    print(f"\n{verdict} {100 * TOLERANCE:g} % (the worst is {worst:.1f} % away)")
    everything = [
        row
        for comparison in comparisons
        for row in comparison.rows(list(comparison.reference[METRICS[0]]))
    ]
    print(f"written: {write_csv(out / 'reference_run.csv', HEAD, everything)}")
    print(f"drawn: {draw(comparisons, out / 'reference_run.png')}")
    return 0 if within else 1


if __name__ == "__main__":
    sys.exit(main())
