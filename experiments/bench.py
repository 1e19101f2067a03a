"""How fast it is, and where the time goes.

    llmscale bench [what=PARTS] [quick=true] [out=DIRECTORY]   (or: python -m experiments.bench ...)

    engines    simulated requests per second and core of both engines, by router, instances, load
    phases     the fast engine's time by kind of event
    placement  microseconds per best-fit placement, against workers and load
    multicast  milliseconds per scale plan, against targets
    week       SageServe's week of 10 million requests, streamed, under two policies
    memory     peak resident memory per million requests
    start      import, compile, load from cache, first step
    env        environment steps per second, one and many, and the share of engine and Python
    ppo        PPO frames per second beside CartPole's, by share of engine, environment and learner
    training   the same of learners as agents.train makes them, in more parts

Prints a table each and writes `bench_NAME.csv` and `bench_machine.csv`. A bar says which part is
measured; all of them take some ten minutes. `quick=true` only shows that it runs.
docs/benchmarks.md has figures and says how to read them.

Examples:
    llmscale bench quick=true
    llmscale bench what=engines,env
    llmscale bench what=ppo out=my-bench
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from experiments.output import RESULTS, columns_of, machine, text_table, write_csv
from llmscale_env._cli import Slip, check_folder, flag, parse_options, run_command, some_of

PARTS = {
    "engines": ("experiments.bench_engines", "bench_engines"),
    "phases": ("experiments.bench_phases", "bench_phases"),
    "placement": ("experiments.bench_placement", "bench_placement"),
    "multicast": ("experiments.bench_multicast", "bench_multicast"),
    "week": ("experiments.bench_week", "bench_week"),
    "memory": ("experiments.bench_engines", "bench_memory"),
    "start": ("experiments.bench_start", "bench_start"),
    "env": ("experiments.bench_env", "bench_env"),
    "ppo": ("experiments.bench_env", "bench_ppo"),
    "training": ("experiments.bench_training", "bench_training"),
}
NEEDS = {"ppo": "stable_baselines3", "training": "sb3_contrib"}
"""Packages that are not installed with the core: without them, a part that was not asked for by name
is passed over."""


def main(words: Sequence[str] | None = None) -> int:
    """Run the command; 0 when it worked, 2 for a slip."""
    return run_command("bench", __doc__, words, _run, wordless=True)


def _run(words: list[str]) -> int:
    options = parse_options(words, ("what", "quick", "out"))
    parts = some_of(options, "what", tuple(PARTS))
    quick = flag(options, "quick")
    missing = [part for part in parts if part in NEEDS and find_spec(NEEDS[part]) is None]
    if missing and "what" in options:
        raise Slip(f"what = {missing[0]!r} needs {NEEDS[missing[0]]}: pip install '.[train]'")
    out = Path(options.get("out", RESULTS / "bench"))
    check_folder("out", out)
    about = list(machine().items())
    print(text_table(("machine", ""), about))
    write_csv(out / "bench_machine.csv", ("what", "value"), about)
    from tqdm import tqdm

    bar = tqdm(parts, unit="part", disable=None, leave=False)
    for part in bar:
        bar.set_description(part)
        if part in missing:
            print(f"\n{part}: passed over, {NEEDS[part]} is not installed")
            continue
        module, function = PARTS[part]
        table = columns_of(getattr(importlib.import_module(module), function)(quick))
        print(f"\n{part}\n{text_table(*table)}", flush=True)
        write_csv(out / f"bench_{part}.csv", *table)
    print(f"\nwritten: {out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
