"""Traces of requests: what there is, what is in them, and where else they come from.

    llmscale traces list
    llmscale traces stats PATH_OR_NAME [format=auto] [sort=false] [hash_block_tokens=512]
                          [plot=FILE.png]
    llmscale traces fit PATH_OR_NAME [levels=4] [from_s=0] [to_s=END] [format=] [sort=]
                        [hash_block_tokens=]
    llmscale traces fetch NAME [to=traces] [base_url=URL]
    llmscale traces prometheus=URL from=TIME to=TIME out=FILE.csv [step=15s] [selector=LABELS]
                          [seed=0]
    llmscale traces build-tables source=DIR [to=DIR]
    (or: python -m llmscale_env.traces ...)

`stats` takes a trace's file, or the name of a shipped count table, length table or mix (`mix:NAME`
where a length table has the same name; an hour of its streams is generated with seed 0). Files are
CSV, Azure's, BurstGPT's, Mooncake's, or what vLLM writes: the result of its benchmark,
OpenTelemetry spans, its log of requests (docs/workloads.md). `fit` fits a generator (rate levels,
log-normal lengths) to a trace file or a shipped count table, prints it as a stream, and holds
draws of it against what it was fitted to. `fetch` downloads a public trace. `build-tables` remakes
the shipped tables from the raw files.

`prometheus=` makes a trace of what Prometheus keeps of vLLM's metrics. Requests per step are
counted; their times within a step and their lengths within the buckets of the histograms are drawn
with `seed`, so that the tokens of each step add up. TIME is 2025-03-01T09:00:00Z, Unix seconds,
now, or now-2h; of a time without a zone, UTC. `step` is the scrape interval or more. LABELS choose
one model, as in selector=namespace="prod",model_name="llama".

Examples:
    llmscale traces stats my.csv plot=my.png
    llmscale traces prometheus=http://localhost:9090 from=now-2h to=now out=trace.csv
    llmscale traces fetch azure-code-2023
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import yaml
from numpy.typing import NDArray

from llmscale_env._cli import (
    Slip,
    check_file,
    check_folder,
    closest,
    complain,
    flag,
    needs,
    number,
    one_of,
    parse_options,
    run_command,
    whole,
)
from llmscale_env.workload import DEFAULT_CLASSES, generate_requests, tables
from llmscale_env.workload.arrivals import generate_arrivals
from llmscale_env.workload.fetch import SOURCES, FetchError, fetch
from llmscale_env.workload.fitting import fit_lengths, fit_levels, rises
from llmscale_env.workload.mixes import load_mix, mix_names
from llmscale_env.workload.readers import FORMATS, Trace, read_trace
from llmscale_env.workload.requests import PS_PER_S
from llmscale_env.workload.served.prometheus import (
    read_duration,
    read_time,
    trace_of_metrics,
    write_trace,
)
from llmscale_env.workload.stats import format_stats, plot_stats, trace_stats

_OPTIONS = {
    "list": (),
    "stats": ("format", "sort", "hash_block_tokens", "plot"),
    "fit": ("levels", "from_s", "to_s", "format", "sort", "hash_block_tokens"),
    "fetch": ("to", "base_url"),
    "prometheus": ("prometheus", "from", "to", "step", "selector", "seed", "out"),
    "build-tables": ("source", "to"),
}
_TAKES_NAME = ("stats", "fit", "fetch")
_MIX_HOUR_S = 3600.0
_LENGTH_DRAWS = 100_000
_FIT_DRAWS = 8
_MOST_LEVELS = 32


class _Columns(NamedTuple):
    """What statistics are taken of; a part that the source lacks is None."""

    about: str
    arrival_ps: NDArray[np.int64] | None
    input_tokens: NDArray | None
    output_tokens: NDArray | None


def _parse(arguments: Sequence[str]) -> tuple[str, str | None, dict[str, str]]:
    if not arguments:
        raise Slip(f"a command is missing; there are {list(_OPTIONS)}")
    command, *rest = arguments
    if any(word.startswith("prometheus=") for word in arguments) and "=" in command:
        command, rest = "prometheus", list(arguments)
    elif command not in _OPTIONS:
        raise Slip(f"unknown command {command!r}{closest(command, list(_OPTIONS))}")
    name: str | None = None
    if command in _TAKES_NAME:
        if not rest:
            raise Slip(f"{command}: a name is missing (python -m llmscale_env.traces list)")
        name, *rest = rest
    return command, name, parse_options(rest, _OPTIONS[command], command)


def _describe(trace: Trace) -> str:
    dropped = [
        f"{count:,} rows with no {what} tokens left out"
        for count, what in (
            (trace.dropped_zero_output, "output"),
            (trace.dropped_zero_input, "input"),
        )
        if count
    ]
    if trace.prefixes is not None:
        share = int(trace.prefixes.shared_tokens.sum()) / int(trace.input_tokens.sum())
        dropped.append(f"{share:.1%} of the prompt tokens are those of an earlier request")
    return "; ".join([f"{trace.path} ({trace.format})", *dropped])


def _columns(name: str, options: dict[str, str]) -> _Columns:
    """A trace file, or something that ships."""
    kind, sort = one_of(options, "format", ("auto", *FORMATS)), flag(options, "sort")
    if os.path.exists(name):
        block_tokens = whole(options, "hash_block_tokens", 512, 1, 1_000_000)
        trace = read_trace(name, kind, sort, hash_block_tokens=block_tokens)
        return _Columns(_describe(trace), trace.arrival_ps, trace.input_tokens, trace.output_tokens)
    for key in ("format", "sort", "hash_block_tokens"):
        if key in options:
            raise Slip(f"{key} = {options[key]!r}: is for a trace's file, which {name!r} is not")
    rng = np.random.default_rng(0)
    if name in tables.names("counts"):
        counts = tables.load_counts(name)
        start = np.repeat(np.arange(len(counts.counts)) * counts.bin_s, counts.counts)
        arrival_s = np.sort(start + rng.random(len(start)) * counts.bin_s)
        about = f"{name}: shipped counts per {counts.bin_s:g} s, arrivals placed at random in them"
        return _Columns(about, np.rint(arrival_s * 1e12).astype(np.int64), None, None)
    if name in tables.names("lengths"):
        inputs, outputs = tables.load_lengths(name).sample(_LENGTH_DRAWS, rng)
        about = f"{name}: {_LENGTH_DRAWS:,} draws from the shipped length table"
        most = int(max(inputs.max(), outputs.max())) + 1
        return _Columns(
            about, None, tables.round_tokens(inputs, most), tables.round_tokens(outputs, most)
        )
    if name.removeprefix("mix:") in mix_names():
        mix = load_mix(name.removeprefix("mix:"))
        queued = sum(queue.n_requests for queue in mix.batch_queues)
        streams = mix.model_copy(update={"batch_queues": ()})
        llms = sorted({str(stream.llm) for stream in mix.streams})
        own = [str(stream.slo_class) for stream in mix.streams]
        classes = tuple(dict.fromkeys([*(c.name for c in DEFAULT_CLASSES), *own]))
        requests = generate_requests(
            streams, classes=classes, llms=llms, horizon_s=_MIX_HOUR_S, rng=rng
        )
        return _Columns(
            f"{name}: an hour of the mix's streams, seed 0"
            + (f" (without the {queued:,} requests that arrive as a queue)" if queued else ""),
            requests.arrival_ps,
            requests.input_tokens,
            requests.output_tokens,
        )
    shipped = {*tables.names("counts"), *tables.names("lengths"), *mix_names()}
    raise Slip(
        f"{name!r} is neither a file nor something that ships{closest(name, sorted(shipped))}"
    )


def _stats(name: str, options: dict[str, str]) -> None:
    plot = options.get("plot")
    if plot is not None and Path(plot).suffix.lower() not in (".png", ".pdf", ".svg"):
        raise Slip(f"plot = {plot!r}: must end in .png, .pdf or .svg")
    if plot is not None:
        needs("matplotlib")
        check_file("plot", Path(plot))
    columns = _columns(name, options)
    print(columns.about)
    print(format_stats(trace_stats(*columns[1:])))
    if plot is not None:
        path = Path(plot)
        path.parent.mkdir(parents=True, exist_ok=True)
        plot_stats(path, columns.about, *columns[1:])
        print(f"drawn: {path}")


def _fit(name: str, options: dict[str, str]) -> None:
    columns = _columns(name, options)
    if columns.arrival_ps is None:
        raise Slip(f"{name!r} has lengths only: there are no arrivals to fit")
    arrival_s = columns.arrival_ps / PS_PER_S
    end_s = float(arrival_s[-1]) + 1.0
    from_s = number(options, "from_s", 0.0, 0.0, end_s, below=True)
    to_s = number(options, "to_s", end_s, from_s, 2 * end_s, above=True)
    keep = (arrival_s >= from_s) & (arrival_s < to_s)
    if not keep.any():
        raise Slip(f"from_s = {from_s:g}, to_s = {to_s:g}: no arrivals in that part of {name}")
    seconds = int(to_s - from_s)
    counts = np.bincount((arrival_s[keep] - from_s).astype(np.int64), minlength=seconds)[:seconds]
    fitted = fit_levels(counts, whole(options, "levels", 4, 2, _MOST_LEVELS))
    stream: dict[str, object] = {"arrivals": fitted.model_dump(mode="json", exclude={"jitter_s"})}
    if columns.input_tokens is not None and columns.output_tokens is not None:
        lengths = fit_lengths(columns.input_tokens[keep], columns.output_tokens[keep])
        stream["lengths"] = lengths.model_dump(mode="json")
    print(f"# fitted to {columns.about}, {from_s:g} s to {to_s:g} s")
    print(yaml.safe_dump(stream, sort_keys=False, default_flow_style=None, width=110), end="")
    drawn = []
    for seed in range(_FIT_DRAWS):
        rng = np.random.default_rng(seed)
        times = generate_arrivals(fitted, None, float(seconds), rng).arrival_ps / PS_PER_S
        drawn.append(_shape(np.bincount(times.astype(np.int64), minlength=seconds)))
    print(f"{'':<44}{'trace':>10}{'generator':>12}{'from':>10}{'to':>10}  ({_FIT_DRAWS} draws)")
    for key, value in _shape(counts).items():
        found = np.array([shape[key] for shape in drawn])
        print(
            f"{key:<44}{value:>10.3g}{found.mean():>12.3g}{found.min():>10.3g}{found.max():>10.3g}"
        )


def _shape(counts: NDArray[np.int64]) -> dict[str, float]:
    """What a generator is judged by."""
    wide = counts[: len(counts) // 15 * 15].reshape(-1, 15).sum(axis=1)
    rise = rises(counts, max(counts.mean() / 2, 1))
    return {
        "requests/s": float(counts.mean()),
        "variance over mean of 1 s counts": float(counts.var() / counts.mean()),
        "variance over mean of 15 s counts": float(wide.var() / wide.mean()),
        "share of empty 15 s windows": float((wide == 0).mean()),
        "largest 1 s count": float(counts.max()),
        "largest rise within 2 s, as a factor": float(np.nanmax(rise)),
    }


def _list() -> None:
    print("Shipped arrival counts of real traces (arrivals: {kind: counts, table: NAME})")
    for name in tables.names("counts"):
        counts = tables.load_counts(name)
        about = dict(counts.about)
        print(
            f"  {name:<26}{counts.duration_s:7.0f} s  {counts.rate_per_s:6.2f}/s  "
            f"{about['licence']}; {about['source']}"
        )
    print("Shipped lengths (lengths: NAME)")
    for name in tables.names("lengths"):
        about = dict(tables.load_lengths(name).about)
        print(f"  {name:<26}{about['rows']:>7} rows  {about['licence']}; {about['kind']}")
    print("Mixes")
    print("  " + ", ".join(mix_names()))
    print("Public traces (python -m llmscale_env.traces fetch NAME)")
    for name, source in SOURCES.items():
        pinned = "checksum known" if source.sha256 else "checksum on first use"
        print(f"  {name:<26}{source.format:<9} {source.licence}; {source.about}; {pinned}")


def _from_prometheus(options: dict[str, str]) -> None:
    """A trace of what Prometheus keeps of vLLM's metrics."""
    from tqdm import tqdm

    for key in ("prometheus", "from", "to", "out"):
        if key not in options:
            raise Slip(
                f"{key}= is missing, as in prometheus=http://localhost:9090 from=now-2h to=now out=a.csv"
            )
    now_s = time.time()
    from_s, to_s = _time(options, "from", now_s), _time(options, "to", now_s)
    try:
        step_s = read_duration(options.get("step", "15s"))
    except ValueError as error:
        raise Slip(f"step = {error}") from None
    seed = whole(options, "seed", 0, 0, 2**31 - 1)
    out = Path(options["out"])
    if out.suffix != ".csv":
        raise Slip(f"out = {str(out)!r}: must end in .csv")
    check_file("out", out)
    with tqdm(total=6, unit=" metrics", disable=None, leave=False) as bar:
        drawn = trace_of_metrics(
            *(options["prometheus"], from_s, to_s, step_s, options.get("selector", ""), seed),
            after_each=bar.update,
        )
    write_trace(out, drawn)
    print(
        f"{len(drawn):,} requests arrived in {to_s - from_s:g} s, counted in steps of {step_s:g} s; "
        f"{drawn.ended:,} ended, {drawn.open_at_start:,} were open at the start and {drawn.open_at_end:,} "
        "at the end"
    )
    print(
        f"drawn with seed {seed}: the times within a step, and the lengths within the histograms' buckets "
        "(the tokens of all that ended in a step add up); prompts and answers are drawn apart"
    )
    if drawn.gaps:
        print(f"{drawn.gaps:,} values were missing between others; the last one before was held")
    print(f"written: {out}")


def _time(options: dict[str, str], key: str, now_s: float) -> float:
    try:
        return read_time(options[key], now_s)
    except (ValueError, OverflowError):
        raise Slip(
            f"{key} = {options[key]!r}: must be now, now-2h, Unix seconds or a time as "
            "2025-03-01T09:00:00Z"
        ) from None


def _build(options: dict[str, str]) -> None:
    from llmscale_env.workload.build_tables import build_tables

    if "source" not in options:
        raise Slip("build-tables: source=DIR is missing (the folder of the raw files)")
    to = Path(options["to"]) if "to" in options else tables.DATA
    check_folder("to", to)
    for path in build_tables(Path(options["source"]), to):
        print(f"{path}  {path.stat().st_size:,} bytes")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; 0 when it worked, 2 for a slip, 1 for a download that failed."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    kept = "; what has arrived is kept, the same command goes on" if words[:1] == ["fetch"] else ""
    return run_command(
        *("traces", __doc__, words, _run), interrupted=f"interrupted{kept}", slips=(ValueError,)
    )


def _run(words: list[str]) -> int:
    command, name, options = _parse(words)
    if command == "list":
        _list()
    elif command == "build-tables":
        _build(options)
    elif command == "prometheus":
        _from_prometheus(options)
    else:
        assert name is not None
        if command == "stats":
            _stats(name, options)
        elif command == "fit":
            _fit(name, options)
        else:
            check_folder("to", Path(options.get("to", "traces")))
            try:
                fetch(name, Path(options.get("to", "traces")), base_url=options.get("base_url"))
            except FetchError as error:
                complain(f"traces: {error}")
                return 1 if name in SOURCES else 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
