"""The cards of GPUs and LLMs, what fits where, and how long an iteration takes there.

    llmscale cards llms | gpus | sources | measured | measured_starts [format=text|markdown]
    llmscale cards fits [llm=A,B] [gpu=A,B] [memory_fraction=0.9]
    llmscale cards times [llm=A,B] [gpu=A,B] [tp=1,2,4,8] [batch=32] [context=1024] [prompt=1024]
                         [memory_fraction=0.9] [data=FILE.json]
    llmscale cards starts [llm=A,B] [gpu=A,B] [tp=1,2] [source=ssd,host] [engine=vllm-0.26]
                          [compile_cache=true] [eager=true] [network=MACHINE] [memory_fraction=0.9]
    (or: python -m llmscale_env.cards ...)

`llms` and `gpus` are the cards themselves, `sources` says where their numbers are published.
`fits`: degrees of tensor parallelism at which an instance fits, and the KV tokens of the least.
`times`: decode of one request and of `batch`, each with `context` tokens, and prefill of one
`prompt`; an instance that does not fit says why. Where times are a roofline's, nine tenths of the
whole iterations that were measured elsewhere are inside the brackets. `measured`: every pair of
which such iterations were measured, over the roofline of the same cards, and runs of mixtures of
experts that others have published.

`starts`: seconds from the start of an instance's process until it serves, by phase and by where
its weights are, at the least degree that fits. `measured_starts`: starts that were timed, over the
same composed.

`llm=` and `gpu=` are names, or files (a Hugging Face config.json, a card in YAML); all if left
out. `data=` has times of your own, a file of llmscale calibrate.

Examples:
    llmscale cards fits llm=llama-3.1-70b gpu=h100-80gb,a100-80gb
    llmscale cards times llm=./config.json gpu=h100-80gb tp=1,2 batch=64
    llmscale cards starts llm=llama-3.1-8b gpu=h100-80gb source=ssd
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np

from llmscale_env._cli import (
    Slip,
    flag,
    number,
    one_of,
    parse_options,
    run_command,
    some_of,
    table,
    whole,
)
from llmscale_env.cluster.cards import gpu_card, known_gpus, known_llms, llm_card
from llmscale_env.cluster.iteration_data import DataFileError
from llmscale_env.cluster.iteration_model import IterationTimeModel
from llmscale_env.cluster.iteration_time import basis, iteration_time_model
from llmscale_env.cluster.kv import TP_DEGREES, DoesNotFitError, fitting_tp, kv_capacity_tokens
from llmscale_env.cluster.loading import (
    ENGINES,
    PHASES,
    START_SOURCES,
    TODAY,
    NetworkConfig,
    StartConfig,
    measured_starts,
    start_phases_s,
)
from llmscale_env.cluster.machines import MACHINES
from llmscale_env.cluster.roofline import (
    RooflineBand,
    published_runs,
    roofline_bands,
    roofline_pairs,
)

_TABLES: dict[str, tuple[str, ...]] = {
    "llms": (),
    "gpus": (),
    "sources": (),
    "fits": ("llm", "gpu", "memory_fraction"),
    "times": ("llm", "gpu", "memory_fraction", "tp", "batch", "context", "prompt", "data"),
    "starts": (
        "llm", "gpu", "memory_fraction", "tp", "source", "engine", "compile_cache", "eager", "network",
    ),
    "measured": (),
    "measured_starts": (),
}  # fmt: skip

Table = tuple[tuple[str, ...], list[tuple[str, ...]]]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line: 0 done, 2 after a slip (named in one line)."""
    return run_command("cards", __doc__, argv, _run)


def _run(words: list[str]) -> int:
    name, rest = words[0], words[1:]
    if name not in _TABLES:
        raise Slip(f"{name!r}: must be one of {', '.join(_TABLES)}; see --help")
    options = parse_options(rest, (*_TABLES[name], "format"), name)
    markdown = one_of(options, "format", ("text", "markdown")) == "markdown"
    try:
        head, rows = _MAKERS[name](options)
    except (DataFileError, ValueError) as error:
        raise Slip(str(error)) from None
    print(table(head, rows, markdown))
    if name == "measured_starts":
        print()
        for line in _spread_of_starts():
            print(line)
    if name == "measured":
        print(f"\n{table(*_runs(), markdown)}")
    if name == "measured" or (name == "times" and any("roofline" in row[-1] for row in rows)):
        print()
        for part, band in roofline_bands().items():
            print(_band(part, band))
    return 0


def _llms(options: dict[str, str]) -> Table:
    """Shape, weights, KV cache and context limit of every LLM."""
    head = (
        "LLM", "layers x hidden", "heads / KV heads", "experts (per token)", "weights", "active", "GB",
        "KV bytes per token", "context limit",
    )  # fmt: skip
    rows: list[tuple[str, ...]] = []
    for name in known_llms():
        card = llm_card(name)
        heads = f"{card.heads} / latent {card.kv_lora_rank}" if card.kv_lora_rank else ""
        experts = f"{card.experts} ({card.experts_per_token})" if card.experts else "-"
        shared = f" + {card.shared_experts}" if card.shared_experts else ""
        rows.append(
            (
                name, f"{card.layers} x {card.hidden}", heads or f"{card.heads} / {card.kv_heads}",
                experts + shared, f"{card.parameters / 1e9:.2f} B", f"{card.active_parameters / 1e9:.2f} B",
                f"{card.weight_bytes / 1e9:.1f}", f"{card.kv_bytes_per_token:,}",
                f"{card.context_limit:,}" if card.context_limit else "none",
            )
        )  # fmt: skip
    return head, rows


def _gpus(options: dict[str, str]) -> Table:
    """Peaks and links of every GPU."""
    head = (
        "GPU", "memory GB", "TB/s", "TFLOP/s bf16", "fp8", "fp4", "PCIe GB/s", "between GPUs GB/s", "linked",
    )  # fmt: skip
    rows = []
    for name in known_gpus():
        card = gpu_card(name)
        peaks = (card.flops_per_s, card.flops_per_s_fp8, card.flops_per_s_fp4)
        rows.append(
            (
                name, f"{card.memory_bytes / 1e9:.1f}", f"{card.memory_bytes_per_s / 1e12:g}",
                *(f"{peak / 1e12:g}" if peak else "-" for peak in peaks),
                f"{card.pcie_bytes_per_s / 1e9:g}", f"{card.nvlink_bytes_per_s / 1e9:g}",
                str(card.linked_gpus),
            )
        )  # fmt: skip
    return head, rows


def _sources(options: dict[str, str]) -> Table:
    """Where the numbers of every card are published."""
    gpus = [(card.name, card.source) for card in map(gpu_card, known_gpus())]
    llms = [(card.name, card.source) for card in map(llm_card, known_llms())]
    return ("card", "source"), [*gpus, *llms]


def _fits(options: dict[str, str]) -> Table:
    """A row per LLM, a column per GPU."""
    llms, gpus = _cards(options)
    fraction = number(options, "memory_fraction", 0.9, 0.0, 1.0, above=True)
    rows = []
    for llm in llms:
        cells = []
        for gpu in gpus:
            fitting = fitting_tp(llm, gpu, memory_fraction=fraction)
            if not fitting:
                cells.append("-")
                continue
            tokens = kv_capacity_tokens(llm, gpu, fitting[0], memory_fraction=fraction)
            cells.append(f"{', '.join(map(str, fitting))} ({tokens:,})")
        rows.append((llm, *cells))
    return ("LLM", *gpus), rows


def _times(options: dict[str, str]) -> Table:
    """Iteration times of every LLM on every GPU, with what they rest on."""
    llms, gpus = _cards(options)
    fraction = number(options, "memory_fraction", 0.9, 0.0, 1.0, above=True)
    degrees = [int(tp) for tp in some_of(options, "tp", tuple(map(str, TP_DEGREES)))]
    batch = whole(options, "batch", 32, 1, 4096)
    context = whole(options, "context", 1024, 0, 10**7)
    prompt = whole(options, "prompt", 1024, 1, 10**7)
    data = Path(options["data"]) if "data" in options else None
    if data is not None and not data.is_file():
        raise Slip(f"data = {str(data)!r}: no such file")
    head = (
        "LLM", "GPU", "tp", "KV tokens", "decode 1, ms", f"decode {batch}, ms", f"prefill {prompt}, ms",
        "times",
    )  # fmt: skip
    rows: list[tuple[str, ...]] = []
    for llm in llms:
        for gpu in gpus:
            for tp in degrees:
                try:
                    tokens = kv_capacity_tokens(llm, gpu, tp, memory_fraction=fraction)
                    model = iteration_time_model(llm, gpu, tp, data=data)
                except (DoesNotFitError, ValueError) as error:
                    if isinstance(error, DataFileError):
                        raise
                    rows.append((llm, gpu, str(tp), "-", "-", "-", "-", str(error)))
                    continue
                decode = (_ms(model, "decode", model.decode_s(b, b * context)) for b in (1, batch))
                prefill = _ms(model, "prefill", model.prefill_s(prompt))
                rows.append((llm, gpu, str(tp), f"{tokens:,}", *decode, prefill, basis(model)))
    return head, rows


def _ms(model: IterationTimeModel, part: str, seconds: float) -> str:
    """Milliseconds; of a roofline with the band of measured times."""
    if model.kind != "roofline":
        return f"{1e3 * seconds:.3g}"
    band = roofline_bands()[part]
    return (
        f"{1e3 * seconds:.3g} ({1e3 * seconds * band.low:.3g} to {1e3 * seconds * band.high:.3g})"
    )


def _starts(options: dict[str, str]) -> Table:
    """A row per LLM, GPU, degree and source: seconds by phase, and in all."""
    llms, gpus = _cards(options)
    fraction = number(options, "memory_fraction", 0.9, 0.0, 1.0, above=True)
    sources = some_of(options, "source", START_SOURCES)
    degrees = some_of(options, "tp", tuple(map(str, TP_DEGREES))) if "tp" in options else ()
    asked = tuple(map(int, degrees))
    start = StartConfig(
        engine=one_of(options, "engine", tuple(ENGINES)) if "engine" in options else TODAY,
        compile_cache=flag(options, "compile_cache"),
        eager=flag(options, "eager"),
    )
    network = NetworkConfig()
    if "network" in options:
        network = NetworkConfig.model_validate(one_of(options, "network", tuple(MACHINES)))
    head = ("LLM", "GPU", "tp", "weights from", *(phase.replace("_", "-") for phase in PHASES), "s")
    rows: list[tuple[str, ...]] = []
    for llm in llms:
        for gpu in gpus:
            fit = asked or fitting_tp(llm, gpu, memory_fraction=fraction)[:1]
            if not fit:
                rows.append((llm, gpu, *["-"] * 8, "fits at no degree"))
            for tp in fit:
                try:
                    kv_capacity_tokens(llm, gpu, tp, memory_fraction=fraction)
                except ValueError as error:
                    rows.append((llm, gpu, str(tp), *["-"] * 7, str(error)))
                    continue
                phases = start_phases_s(llm, gpu, tp, start, network)
                for source in sources:
                    seconds = [phases[source][phase] for phase in PHASES]
                    cells = (f"{each:.1f}" for each in (*seconds, sum(seconds)))
                    rows.append((llm, gpu, str(tp), source, *cells))
    return head, rows


_TIMED = ("process", "compile", "capture", "warm_up", "wake", "ready")


def _measured_starts(options: dict[str, str]) -> Table:
    """A row per start: measured seconds by phase, and composed ones in brackets."""
    head = (
        "LLM", "layers", "GPU", "tp", "engine", "compile cache", "weights, s (GB/s)",
        *(phase.replace("_", "-") for phase in _TIMED), "measured by",
    )  # fmt: skip
    rows: list[tuple[str, ...]] = []
    for each in measured_starts():
        load_s, cells = each.seconds["load"], []
        for phase in _TIMED:
            seconds = each.seconds[phase]
            cells.append("-" if seconds is None else f"{seconds:g} ({each.composed[phase]:.1f})")
        weights = "-" if load_s is None else f"{load_s:g} ({each.weight_gb / each.tp / load_s:.1f})"
        rows.append(
            (
                each.llm, str(each.layers), each.gpu, str(each.tp), each.engine,
                {"cached": "yes", "cold": "no"}.get(each.compile, "-"), weights, *cells, each.source,
            )
        )  # fmt: skip
    return head, rows


def _spread_of_starts() -> Iterable[str]:
    """Per phase: how far measured starts on one GPU are from composed ones."""
    for phase in _TIMED:
        ratios = [
            seconds / each.composed[phase]
            for each in measured_starts()
            if each.tp == 1 and (seconds := each.seconds[phase]) is not None
        ]
        if len(ratios) < 3:
            continue
        least, median, most = np.percentile(ratios, (0, 50, 100))
        name = phase.replace("_", "-")
        yield (
            f"{name}: {len(ratios)} measured on one GPU, {least:.2f} to {most:.2f} times the composed, "
            f"median {median:.2f}"
        )


def _measured(options: dict[str, str]) -> Table:
    """A row per pair: quantiles of measured over roofline time."""
    head = (
        "LLM", "GPU", "tp", "decode: least, median, most", "prefill: least, median, most", "measured by",
    )  # fmt: skip
    rows = []
    for pair in roofline_pairs():
        spread = (
            ", ".join(f"{x:.2f}" for x in np.percentile(ratios, (0, 50, 100)))
            for ratios in (pair.decode, pair.prefill)
        )
        rows.append((pair.llm, pair.gpu, str(pair.tp), *spread, pair.source))
    return head, rows


def _runs() -> Table:
    """A row per run of a mixture of experts that others have published."""
    head = (
        "LLM", "GPU", "tp", "requests of input + output", "s", "roofline s", "ratio", "measured by",
    )  # fmt: skip
    rows: list[tuple[str, ...]] = [
        (
            r.llm, r.gpu, str(r.tp), f"{r.requests} of {r.input_tokens} + {r.output_tokens}",
            f"{r.seconds:.3g}", f"{r.roofline_s:.3g}", f"{r.seconds / r.roofline_s:.2f}", r.source,
        )
        for r in published_runs()
    ]  # fmt: skip
    return head, rows


_MAKERS: dict[str, Callable[[dict[str, str]], Table]] = {
    "llms": _llms,
    "gpus": _gpus,
    "sources": _sources,
    "fits": _fits,
    "times": _times,
    "starts": _starts,
    "measured": _measured,
    "measured_starts": _measured_starts,
}


def _cards(options: dict[str, str]) -> tuple[list[str], list[str]]:
    """Names of the LLMs and GPUs that are asked for."""
    llms = options["llm"].split(",") if "llm" in options else known_llms()
    gpus = options["gpu"].split(",") if "gpu" in options else known_gpus()
    return [llm_card(name).name for name in llms], [gpu_card(name).name for name in gpus]


def _band(part: str, band: RooflineBand) -> str:
    return (
        f"{part}: nine tenths of {band.points} iterations of {band.pairs} measured pairs took {band.low:.2f} "
        f"to {band.high:.2f} times the roofline's; the band of the other LLMs holds "
        f"{100 * band.covered:.0f} % of one that is left out"
    )


if __name__ == "__main__":
    sys.exit(main())
