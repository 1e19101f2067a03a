"""Where prefix caching and speculative decoding move the best batch size: Chiron, Section 6.3.

    python -m experiments.best_batch_size [llms=NAME,NAME] [lengths=TABLE] [out=DIRECTORY]

One saturated instance of each LLM, as in the paper's Figure 3 (`chiron-fig03`: no KV memory kept free
at admission, preemption by recompute), over a ladder of batch limits: plain, with a prefix cache,
with speculative decoding, with both. Parameters are the defaults of
`llmscale_env.cluster.optimisations`, which are ours: the paper names none. Llama 3.1 8B drafts for the
70B as in the paper; for the 8B itself, Llama 3.2 3B stands in.
Writes `best_batch_size.csv`, `best_limits.csv` and `best_batch_size.png`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.chiron.fig03_batch_size import GPU, PARAMETERS, TENSOR_PARALLEL
from experiments.chiron.instance import backlog, measure
from experiments.output import RESULTS, new_figure, save_figure, text_table, write_csv
from llmscale_env._cli import check_folder, one_of, parse_options, run_command, some_of
from llmscale_env.cluster.iteration_time import basis, iteration_time_model
from llmscale_env.cluster.optimisations import AverageHits, SpeculativeConfig
from llmscale_env.workload import tables

BATCH_LIMITS = (
    1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256, 320, 384, 448, 512, 640, 768, 896, 1024, 1280, 1536, 2048,
)  # fmt: skip
DRAFTS = {"llama-3.1-8b": "llama-3.2-3b", "llama-3.1-70b": "llama-3.1-8b"}
SEED = 0
ITL_SLO_S = 0.2
"""The paper's for interactive requests (Section 6)."""

VARIANTS = ("plain", "prefix cache", "speculative", "both")
HEAD = (
    "llm",
    "tp",
    "variant",
    "batch_limit",
    "throughput_tokens_per_s",
    "itl_mean_s",
    "preemptions_per_request",
)
BEST_HEAD = (
    "llm",
    "variant",
    "best_limit",
    "tokens_per_s",
    "itl_mean_s",
    "best_limit_within_slo",
    "tokens_per_s_within_slo",
    "itl_mean_s_within_slo",
)


def optimisations(llm: str, variant: str) -> dict[str, Any]:
    """Arguments of `measure` for one of `VARIANTS`."""
    chosen: dict[str, Any] = {}
    if variant in ("prefix cache", "both"):
        chosen["average_hits"] = AverageHits()
    if variant in ("speculative", "both"):
        chosen["speculative"] = SpeculativeConfig(draft_llm=DRAFTS[llm])
    return chosen


def sweep(
    llms: Sequence[str],
    lengths: str,
    limits: Sequence[int] = BATCH_LIMITS,
    warm_up_s: int = PARAMETERS["paper"].warm_up_s,
    measured_s: int = PARAMETERS["paper"].measured_s,
) -> list[tuple[Any, ...]]:
    """A row of `HEAD` for each LLM, variant and batch limit."""
    requests = backlog(lengths, PARAMETERS["paper"].queued, SEED)
    rows = []
    for llm in llms:
        tp = TENSOR_PARALLEL[llm]
        model = iteration_time_model(llm, GPU, tp)
        for variant in VARIANTS:
            for limit in limits:
                found = measure(
                    model,
                    requests,
                    limit,
                    warm_up_s=warm_up_s,
                    measured_s=measured_s,
                    **optimisations(llm, variant),
                )
                shown = (found.tokens_per_s, found.itl_s, found.preemptions_per_request)
                rows.append((llm, tp, variant, limit, *shown))
    return rows


def best(rows: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """A row of `BEST_HEAD` for each LLM and variant: most throughput, in all and within the SLO."""
    found: list[tuple[Any, ...]] = []
    for llm, variant in dict.fromkeys((row[0], row[2]) for row in rows):
        mine = [row[3:6] for row in rows if (row[0], row[2]) == (llm, variant)]
        within = [row for row in mine if row[2] <= ITL_SLO_S]
        top = max(mine, key=lambda row: row[1])
        top_within = max(within, key=lambda row: row[1]) if within else (None, None, None)
        found.append((llm, variant, *top, *top_within))
    return found


def draw(rows: Sequence[tuple[Any, ...]], path: Path) -> Path:
    """Throughput above, latency below, one column per LLM."""
    llms = list(dict.fromkeys(row[0] for row in rows))
    figure = new_figure(5.6 * len(llms), 6.4)
    grid = figure.subplots(2, len(llms), squeeze=False, sharex=True)
    for column, llm in enumerate(llms):
        for variant in VARIANTS:
            mine = [row for row in rows if row[0] == llm and row[2] == variant]
            limits = [row[3] for row in mine]
            grid[0, column].plot(limits, [row[4] for row in mine], "o-", ms=3, label=variant)
            grid[1, column].plot(limits, [row[5] for row in mine], "o-", ms=3)
        grid[0, column].set_title(f"{llm}, {TENSOR_PARALLEL[llm]} x {GPU}", fontsize=10)
        grid[0, column].set_ylabel("throughput (tokens/s)")
        grid[0, column].legend(fontsize=8)
        grid[1, column].set_ylabel("mean inter-token latency (s)")
        grid[1, column].set_xlabel("batch limit (requests)")
        grid[1, column].set_xscale("log", base=2)
        grid[1, column].axhline(ITL_SLO_S, color="0.5", lw=0.8, ls="--")
        for axes in grid[:, column]:
            axes.set_ylim(bottom=0)
            axes.grid(alpha=0.3)
    return save_figure(figure, path)


def main(words: Sequence[str] | None = None) -> int:
    """Run the command; 0 when it worked, 2 for a slip."""
    return run_command("best_batch_size", __doc__, words, _run, wordless=True)


def _run(words: list[str]) -> int:
    options = parse_options(words, ("llms", "lengths", "out"))
    llms = some_of(options, "llms", tuple(TENSOR_PARALLEL))
    names = sorted(tables.names("lengths"), key=lambda name: name != "sharegpt-single-turn")
    lengths = one_of(options, "lengths", names)
    out = Path(options.get("out", RESULTS / "best_batch_size"))
    check_folder("out", out)
    rows = sweep(llms, lengths)
    found = best(rows)
    print(text_table(HEAD, rows))
    print(text_table(BEST_HEAD, found))
    for llm in llms:
        print(
            f"iteration times of {llm}: {basis(iteration_time_model(llm, GPU, TENSOR_PARALLEL[llm]))}"
        )
    print(f"written: {write_csv(out / 'best_batch_size.csv', HEAD, rows)}")
    print(f"written: {write_csv(out / 'best_limits.csv', BEST_HEAD, found)}")
    print(f"drawn: {draw(rows, out / 'best_batch_size.png')}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
