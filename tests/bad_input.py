"""Every command and what it takes; words and files that nobody should give in the place of that."""

from __future__ import annotations

import gzip
import os
from dataclasses import dataclass
from pathlib import Path

REACHED = "reached the work"
"""Said by what stands in the place of a command's work: everything before it was accepted."""


@dataclass(frozen=True)
class Command:
    """A command line.

    Attributes:
        module: that `python -m` runs.
        words: that reach its work; OUT is a fresh folder.
        work: what is replaced, as MODULE:NAME.
        wrong: options that take a number, a flag or a name, so that nothing of `VALUES` is right.
        free: options that take text, lists or scenarios, where some values are right.
        reads: options that name a file or folder to read; "" is the second word.
        writes: options that name where results go.
    """

    module: str
    words: tuple[str, ...]
    work: tuple[str, ...]
    wrong: str = ""
    free: str = ""
    reads: str = ""
    writes: str = ""


SPREAD = "workers launcher"

COMMANDS = (
    Command(
        "agents.train",
        ("env=mixed-slo-hours", "references=none", "out=OUT"),
        ("agents.train:run", "agents.runs.seeds:train_all"),
        "env agent seed total_timesteps n_envs env_threads validation_every resume ppo.gamma ppo.batch_size "
        "warm_start.kl sharpen scenario.horizon_s randomise.groups seeds " + SPREAD,
        "quantile references observation action forecaster reference scenario.workload validation_workloads "
        "validation_rate_scales randomise.ranges.workload.rate_scale lagrangian.attainment "
        "warm_start.policy scenario.fleet.pools.mixed.batch_limit scenario.x.y scenario.reward",
        "recipe scenario",
        "out",
    ),
    Command(
        "agents.tune",
        ("env=mixed-slo-hours", "out=OUT"),
        ("agents.tune:_search",),
        "env trials steps parallel resume seed " + SPREAD,
        "ppo.net_arch scenario.workload",
        "recipe scenario",
        "out",
    ),
    Command(
        "agents.evaluate",
        ("env=burst-multicast", "policies=static", "out=OUT"),
        ("agents.evaluate:compare",),
        "env episodes seed wide engine scenario.horizon_s " + SPREAD,
        "scenario.workload scenario.network",
        "policies scenario",
        "out",
    ),
    Command(
        "agents.export",
        ("model=pretrained:burst-multicast-maskable-ppo-seed1", "out=OUT/a.onnx"),
        ("agents.export:write",),
        reads="model",
        writes="out",
    ),
    Command("agents.pictures", ("run=none", "out=OUT"), (), "seed run", reads="run"),
    Command(
        "agents.examples.cleanrl_ppo",
        ("seed=0",),
        ("agents.examples.cleanrl_ppo:make_networks",),
        "env total_timesteps seed episodes scenario.horizon_s",
        "workload",
    ),
    Command(
        "agents.examples.sb3",
        ("seed=0",),
        ("agents.examples.sb3:make_model",),
        "env total_timesteps seed episodes scenario.horizon_s masks",
        "workload",
    ),
    Command(
        "agents.examples.sac",
        ("seed=0",),
        ("agents.examples.sac:make_model",),
        "env total_timesteps seed episodes scenario.horizon_s",
        "workload",
    ),
    Command(
        "agents.examples.torchrl",
        ("seed=0",),
        ("agents.examples.torchrl:make_env",),
        "env total_timesteps seed episodes scenario.horizon_s",
        "workload",
    ),
    Command(
        "agents.examples.pettingzoo_marl",
        ("seed=0",),
        ("agents.examples.pettingzoo_marl:make_learner",),
        "env total_timesteps seed episodes scenario.horizon_s",
        "workload",
    ),
    Command(
        "agents.examples.rllib",
        ("seed=0", "out=OUT"),
        ("llmscale_env._spread.on_ray:import_ray",),
        "env total_timesteps train_batch runners seed episodes scenario.horizon_s",
        "workload",
        writes="out",
    ),
    Command(
        "agents.offline",
        ("make", "out=OUT"),
        ("agents.offline.data:record",),
        "env episodes seed policies scenario.horizon_s",
        writes="out",
    ),
    Command(
        "agents.offline",
        ("learn", "data=none", "out=OUT"),
        (),
        "method steps seed episodes",
        reads="data",
        writes="out",
    ),
    Command(
        "baselines.tune",
        ("policy=llumnix", "env=mixed-slo-hours", "cache=none", "out=OUT/a.yaml"),
        ("baselines.tune:sweep", "baselines.tune:halve"),
        "policy env workload workloads search seeds first_seeds score attainment write scenario.horizon_s "
        "seed budget_steps " + SPREAD,
        "high low batch_limit min_instances",
        "env",
        "out",
    ),
    Command(
        "baselines.clairvoyant",
        ("env=mixed-slo-hours",),
        ("baselines.clairvoyant.__main__:clairvoyant_bound",),
        "env seeds seed attainment slot_s",
        "policies",
        "env",
    ),
    Command("experiments.list", ("out=OUT",), (), reads="out"),
    Command(
        "experiments.manual",
        ("out=OUT",),
        ("experiments.manual:write",),
        "check pictures",
        writes="out",
    ),
    Command(
        "experiments.repeat",
        ("blitzscale-fig12", "out=OUT"),
        ("experiments.repeat:repeat",),
        "share least " + SPREAD,
        reads="pages",
        writes="out",
    ),
    Command(
        "experiments.report",
        ("results=OUT",),
        ("experiments.report:write_page",),
        "paper scale stale",
        reads="results",
    ),
    Command(
        "experiments.run",
        ("chiron-fig03", "scale=quick", "out=OUT"),
        ("experiments.run:RunCache",),
        "scale seeds warm_up_s " + SPREAD,
        "batch_limits llms",
        writes="out",
    ),
    Command(
        "experiments.bench",
        ("quick=true", "out=OUT"),
        ("experiments.bench:machine",),
        "what quick",
        writes="out",
    ),
    Command(
        "experiments.reference_run",
        ("data=none", "out=OUT"),
        (),
        "engine data",
        reads="data",
    ),
    Command(
        "experiments.client_runs",
        ("data=none", "out=OUT"),
        ("experiments.client_runs:Runs",),
        "search seed data",
        reads="data",
        writes="out",
    ),
    Command(
        "experiments.fidelity",
        ("data=none", "out=OUT"),
        (),
        "parts data",
        reads="data",
    ),
    Command(
        "experiments.best_batch_size",
        ("out=OUT",),
        ("experiments.best_batch_size:sweep",),
        "llms lengths",
        writes="out",
    ),
    Command(
        "experiments.prefix_cache",
        ("seeds=0", "out=OUT"),
        ("experiments.prefix_cache:measure",),
        "routers seeds",
        "scenario.horizon_s scenario.workload",
        reads="scenario",
        writes="out",
    ),
    Command(
        "experiments.capacity",
        ("slo=ttft:1,itl:0.1", "rate_per_s=3", "out=OUT"),
        ("experiments.capacity:fingerprint",),
        "slo rate_per_s lengths arrivals format sort attainment llm gpu tp gpus_per_host max_gpus "
        "batch_limit predictor windows window_s warm_up_s seed",
        "policy",
        "trace iteration_times",
        "out",
    ),
    Command(
        "experiments.worlds",
        ("env=burst-multicast", "scale=quick", "page=none"),
        ("experiments.worlds:_searched",),
        "env scale search episodes " + SPREAD,
        reads="learned page summary",
    ),
    Command(
        "experiments.worlds_load",
        ("show=picture", "out=OUT/a.png"),
        ("experiments.worlds_load:picture",),
        "show days env fleets",
        "policies",
        writes="out",
    ),
    Command(
        "experiments.aladdin.measured",
        ("data=none", "out=OUT/a.csv"),
        (),
        reads="data",
        writes="out",
    ),
    Command(
        "experiments.chiron.llumnix_sweep",
        ("out=OUT/a.yaml", "cache=OUT"),
        ("experiments.chiron.llumnix_sweep:fingerprint",),
        "seeds " + SPREAD,
        writes="out cache",
    ),
    Command(
        "llmscale_env.calibrate",
        ("csv=none", "llm=llama-2-7b", "gpu=a100-80gb", "tp=1", "out=OUT/a.json"),
        ("llmscale_env.cluster.fitting:fit_all",),
        "llm gpu tp",
        reads="csv data",
        writes="out plots",
    ),
    Command("llmscale_env.calibrate", ("report",), (), "format", reads="data"),
    Command(
        "llmscale_env.cards",
        ("times", "llm=qwen3-8b", "gpu=h200", "tp=1"),
        (),
        "llm gpu tp batch context prompt memory_fraction format",
        reads="data",
    ),
    Command(
        "llmscale_env.calibrate",
        ("observed=none", "llm=llama-2-7b", "gpu=a100-80gb", "tp=1", "out=OUT/a.json"),
        ("llmscale_env.calibrate.fit:calibrate",),
        "llm gpu tp max_num_batched_tokens max_num_seqs kv_tokens split search seed warm_up",
        "also runs",
        "observed",
        "out plots",
    ),
    Command(
        "llmscale_env.calibrate",
        ("observed=none", "llm=llama-2-7b", "gpu=a100-80gb", "tp=1", "data=none"),
        ("llmscale_env.calibrate.replay:Replay",),
        reads="observed data",
        writes="plots",
    ),
    Command(
        "llmscale_env.traces",
        ("stats", "azure-conv-2023", "plot=OUT/a.png"),
        ("llmscale_env.traces:trace_stats",),
        "format sort",
        reads="",
        writes="plot",
    ),
    Command(
        "llmscale_env.traces",
        ("fit", "azure-conv-2023"),
        ("llmscale_env.traces:fit_levels",),
        "format sort levels from_s to_s",
        reads="",
    ),
    Command(
        "llmscale_env.traces", ("fetch", "azure-conv-2023", "to=OUT"), ("llmscale_env.traces:fetch",),
        writes="to",
    ),
    Command("llmscale_env.traces", ("build-tables", "source=none", "to=OUT"), (), reads="source"),
)  # fmt: skip

DEEP = 100_000

VALUES = (
    *(
        "",
        "abc",
        "nan",
        "-inf",
        "1e400",
        "-1e308",
        "9" * 5000,
        "0x",
        "²",
        "-0.5",
        "-1",
        "none,none",
    ),
    *("\0", "\udcff", "a\nb", "\x1b[31m", "\u2028", "🦙", "x" * 100_000, "%s%n", "../..", "~", ","),
    *(
        "[1",
        "{",
        "[" * DEEP,
        "{a: " * DEEP,
        "&a [*a]",
        "!!int ''",
        "!!float x",
        "2020-13-45",
        "1..0",
    ),
    *(
        "0..999999999",
        "0..1e300",
        "!!python/object:os.system",
        "{[a]: b}",
        "null..null",
        "{a: 1, a: 2}",
    ),
    *(
        "&a {<<: *a}",
        "llmscale/MixedSLO-v1",
        "static:a=",
        "static:=",
        "a=b=c",
        ":",
        "*",
        "&",
        "- a\n- b",
    ),
)
"""Wrong for every number, flag and name."""

BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]\n"
    for a, b in zip("abcdefghi", "bcdefghij", strict=True)
)
CHAIN = "a0: &a0 [x]\n" + "".join(f"a{k + 1}: &a{k + 1} [*a{k}]\n" for k in range(5000))

TRACE = "arrival_time_s,input_tokens,output_tokens\n"
OBSERVED = "arrival_time_s,input_tokens,output_tokens,ttft_s,e2e_s\n"
BENCH = '{"input_lens": [9, 9], "output_lens": [2, 2], "ttfts": [1, 1], "itls": %s, "start_times": [0, 1]}'
ITERATIONS = (
    "kind,decode_requests,decode_mean_context,prefill_requests,prefill_chunk_tokens,prefill_cached_tokens,"
    "iteration_ms\n"
)


def files() -> dict[str, bytes]:
    """Files by name that no command can make anything of."""
    texts = {
        "empty": "",
        "blank": "\n\n",
        "word": "word",
        "list.yaml": "- a\n- b\n",
        "cut.yaml": "fleet: {pools: [",
        "deep.yaml": "[" * DEEP,
        "deep-blocks.yaml": "\n".join(" " * k + "a:" for k in range(300)),
        "cyclic.yaml": "fleet: &a\n  pools: [*a]\n",
        "merges.yaml": "a: &a {<<: *a}\n",
        "bomb.yaml": BOMB,
        "chain.yaml": CHAIN,
        "huge.yaml": "a: b\n" * 400_000,
        "numbers.yaml": f"horizon_s: {'9' * 5000}\n",
        "nan.yaml": "like: mixed-slo\nhorizon_s: .nan\n",
        "inf.yaml": "like: mixed-slo\nhorizon_s: .inf\ncontrol_interval_s: 1e-300\n",
        "wrong.yaml": "like: mixed-slo\nfleet: 3\n",
        "wrong-list.yaml": "like: mixed-slo\nworkload.streams: {a: [1]}\n",
        "keys.yaml": "like: mixed-slo\n1: 2\n[a, b]: c\n",
        "number-keys.yaml": "like: mixed-slo\n1: 2\n? 3.5\n: 4\n",
        "twice.yaml": "like: mixed-slo\nhorizon_s: 60\nhorizon_s: 120\n",
        "itself.yaml": "like: itself\n",
        "tags.yaml": "!!python/object/apply:os.system [ls]\n",
        "dates.yaml": "like: mixed-slo\nhorizon_s: 2020-13-45\n",
        "deep.json": "[" * DEEP,
        "objects.json": '{"models": ' * DEEP,
        "cut.json": '{"schema_version": 1, "models": [{"llm": ',
        "nan.json": '{"schema_version": 1, "models": [NaN]}',
        "other.json": '{"schema_version": 1, "models": [{"llm": 3}, 7]}',
        "number.json": '{"schema_version": %s, "models": []}' % ("9" * 5000),
        "shapes.json": '{"schema_version": 1, "models": [], "roofline": 3}',
        "header.csv": TRACE,
        "long-field.csv": TRACE + f"{'1' * 200_000},1,1\n",
        "long-header.csv": "a" * 5_000_000,
        "quotes.csv": TRACE + '0,"1,1\n' * 10,
        "quoted-long.csv": TRACE + '0,"' + "1" * 200_000 + '",1\n',
        "text.csv": TRACE + "a,b,c\n",
        "few.csv": TRACE + "1,2\n",
        "many.csv": TRACE + "1,2,3,4,5\n",
        "nan.csv": TRACE + "nan,1,1\ninf,1,1\n",
        "huge.csv": TRACE + "0,1e300,1\n",
        "huge-time.csv": TRACE + "0,1,1\n1e300,1,1\n",
        "nul.csv": TRACE + "0,\0,1\n",
        "backwards.csv": TRACE + "5,1,1\n0,1,1\n",
        "one.csv": TRACE + "0,1,1\n",
        "deep.jsonl": '{"timestamp": ' + "[" * DEEP,
        "huge.jsonl": '{"timestamp": 1%s, "input_length": 1, "output_length": 1}' % ("0" * 400),
        "tokens.jsonl": '{"timestamp": 1, "input_length": 1e300, "output_length": 1}',
        "iterations.csv": ITERATIONS,
        "iterations-long.csv": ITERATIONS + f"decode,{'1' * 200_000},1,0,0,0,1\n",
        "iterations-text.csv": ITERATIONS + "decode,a,b,c,d,e,f\n",
        "iterations-nan.csv": ITERATIONS + "decode,1,nan,0,0,0,nan\n",
        "iterations-huge.csv": ITERATIONS + f"decode,{'9' * 400},1,0,0,0,1\n",
        "iterations-kind.csv": ITERATIONS + "other,1,1,0,0,0,1\n",
        "observed.csv": OBSERVED,
        "observed-one.csv": OBSERVED + "0,1,2,0.1,0.2\n",
        "observed-text.csv": OBSERVED + "0,a,2,0.1,0.2\n" * 30,
        "observed-nan.csv": OBSERVED + "0,1,2,nan,inf\n" * 30,
        "observed-huge.csv": OBSERVED + f"0,1,2,0.1,{'9' * 400}\n" * 30,
        "observed-long.csv": OBSERVED + "0,1,2,0.1,1e300\n" * 30,
        "observed-tokens.csv": OBSERVED + "0,1e300,2,0.1,0.2\n" * 30,
        "observed-backwards.csv": OBSERVED + "0,1,2,0.2,0.1\n" * 30,
        "observed-twice.csv": "ttft_s," + OBSERVED,
        "bench.json": '{"mean_ttft_ms": 3, "duration": 2}',
        "bench-shapes.json": BENCH % "[[0.1], 3]",
        "bench-lengths.json": BENCH % "[[0.1]]",
        "bench-text.json": BENCH % '[["a"], [0.1]]',
        "bench-lines.json": (BENCH % "[[0.1], [0.1]]" + "\n") * 2 + "{]}",
        "guidellm.json": '{"benchmarks": 3}',
        "guidellm-none.json": '{"benchmarks": []}',
        "guidellm-shapes.json": '{"benchmarks": [3]}',
        "guidellm-requests.json": '{"benchmarks": [{"requests": {"successful": [{"info": 3}]}}]}',
        "guidellm-part.json": '{"benchmarks": [{"requests": {}, "request_totals": {"errored": 9}}]}',
    }
    packed = gzip.compress((TRACE + "0,1,1\n" * 1000).encode())
    return {name: text.encode("utf-8", "surrogatepass") for name, text in texts.items()} | {
        "binary.yaml": bytes(range(256)) * 40,
        "binary.json": bytes(range(256)) * 40,
        "binary.csv": bytes(range(256)) * 40,
        "latin.csv": TRACE.encode() + b"\xe9,1,1\n",
        "model.zip": b"PK\x05\x06" + bytes(18),
        "cut.csv.gz": packed[:-20],
        "damaged.csv.gz": packed[:20] + bytes(10) + packed[30:],
        "no.csv.gz": b"no gzip at all",
    }


def lay_out(folder: Path) -> list[Path]:
    """Put `files` and what is no file into a folder, and the same as parts of run folders."""
    made = []
    for name, content in files().items():
        (folder / name).write_bytes(content)
        made.append(folder / name)
    for name in (
        "empty",
        "cut.yaml",
        "deep.yaml",
        "bomb.yaml",
        "list.yaml",
        "binary.yaml",
        "tags.yaml",
    ):
        run = folder / f"run-{name}"
        run.mkdir()
        (run / "config.yaml").write_bytes(files()[name])
        for other in ("model_best.zip", "validation.csv", "rows.csv", "result.json"):
            (run / other).write_bytes(files()["binary.csv"])
        made.append(run)
    (folder / "folder").mkdir()
    (folder / "folder.yaml").mkdir()
    os.mkfifo(folder / "pipe")
    os.mkfifo(folder / "pipe.yaml")
    (folder / "loop.yaml").symlink_to(folder / "loop.yaml")
    (folder / "a\nb|c.yaml").write_text("- a\n")
    others = (
        "folder",
        "folder.yaml",
        "pipe",
        "pipe.yaml",
        "loop.yaml",
        "a\nb|c.yaml",
        "missing.yaml",
    )
    made += [folder / name for name in others]
    return [*made, Path("/dev/zero"), Path("/dev/null"), Path("/proc/self/mem"), Path("x" * 5000)]


def refused_places(folder: Path) -> list[str]:
    """Where nothing can be written, given `lay_out` in the folder, with the endings that commands ask for."""
    plain = [
        "/proc/x",
        "/dev/null",
        f"{folder}/word/in",
        f"{folder}/pipe",
        "x" * 5000,
        f"{folder}/loop.yaml/a",
    ]
    return [
        *plain,
        *(f"{p}{e}" for p in ("/proc/x", "/proc/x/a") for e in (".onnx", ".yaml", ".png")),
    ]
