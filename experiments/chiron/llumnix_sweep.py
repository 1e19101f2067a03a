"""Llumnix's settings for Chiron's evaluation: one for all its workloads, and one for each.

    python -m experiments.chiron.llumnix_sweep [seeds=8] [workers=N] [launcher=ray] [out=FILE] [cache=FOLDER]

    seeds=N      episodes per setting and load in the last round: seeds 1000, 1001, ...; no experiment uses
                 them
    workers=N    processes; one per processor if left out
    launcher=ray  episodes are tasks of a Ray cluster (ray.address=, as in experiments.run)
    out=FILE     experiments/chiron/llumnix.yaml if left out
    cache=FOLDER  where finished runs are kept, so that the same command goes on after an interruption;
                 in the user's cache folder if left out

Chiron, section 6: base Llumnix has "the configuration that maximizes SLO satisfaction across all
workloads", and for "Llumnix (tuned)" there is "a parameter sweep per-workload to find the configuration that
maximizes SLO attainment and throughput". The workloads are W_A and W_B in the configurations small, large
and mixed, each at two loads.

The text gives no batch limit of Llumnix. Section 6.2 calls Chiron's 2048 to 4096 "nearly 50x higher" than
that of the untuned version, which is about 64. The sweep finds 1024. So there are two untuned settings:
`untuned`, the best of the whole grid, and `untuned_64`, the best of those with a batch limit of 64.

Ours: the grid; the rounds; how two aims become one order. A setting is as good as another in attainment if
its mean is within a tolerance of the best one's. Those come first, by throughput per instance (geometric
mean over loads and seeds, so that each counts alike); the others follow by attainment. The tolerance is 0.1
percentage points for the untuned ones, which the paper chooses by attainment alone, and one point for the
tuned ones. Attainment is the mean over the seeds: the paper maximises the share of requests on time, and
the worst of several seeds would depend on how many there are. The lowest of them stands beside it.

One seed is not enough: three of the six tuned settings are others with eight seeds than with one. To run the
whole grid on all seeds would take several times as long, so that there are rounds (successive halving): all
settings meet one seed, the best sixth of them two, and the best four all of them.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import platformdirs
import yaml

from baselines.llumnix import LlumnixPolicy
from baselines.tune import FIRST_SEED, MAX_SEEDS
from experiments.chiron.llumnix_settings import IMPLIED_LIMIT, PATH, policy_text
from experiments.chiron.loads import run_load
from experiments.harness.cache import RunCache
from experiments.harness.execute import outcomes
from experiments.harness.fingerprint import fingerprint
from experiments.output import text_table
from llmscale_env import _spread
from llmscale_env._cli import Slip, check_file, check_folder, parse_options, run_command, whole
from llmscale_env._spread import OtherCode, WorkerLost
from llmscale_env._writing import replace_file

if TYPE_CHECKING:
    from pandas import DataFrame

GRID: dict[str, tuple[float, ...]] = {
    "high": (0.02, 0.05, 0.15, 0.4, 0.7, 0.9),
    "low_share": (0.3, 0.7),
    "batch_limit": (64, 256, 1024),
    "rebalance": (True, False),
}
"""`low = low_share * high`. Llumnix has no range for the batch limit: vLLM's default is 256, operators limit
it "to meet inter-token latency SLOs" (2.3), and 1024 is about what KV memory holds. Rebalancing gives
instances that have just come work, and lets interactive requests wait behind batch ones everywhere."""

LOADS: dict[str, tuple[float, ...]] = {
    "W_A small": (100, 300),
    "W_A large": (15, 45),
    "W_A mixed": (30, 90),
    "W_B small": (200_000, 600_000),
    "W_B large": (25_000, 70_000),
    "W_B mixed": (30_000, 80_000),
}
"""A moderate and a high load of each of Figure 9's and 10's ranges."""

TIMES = {"W_A": {"warm_up_s": 600, "measured_s": 600, "tail_s": 120}, "W_B": {"tail_s": 120}}
UNTUNED_TOLERANCE = 0.001
TUNED_TOLERANCE = 0.01
KEPT_OF, KEPT_LEAST = 6, 4
"""One setting of six goes on to the next round, but four at least."""
_MODULE = "experiments.chiron.llumnix_sweep"
_NAMES = ("high", "low", "batch_limit", "rebalance")

Point = dict[str, Any]


def points() -> list[Point]:
    """The grid's settings: `high`, `low`, `batch_limit`, `rebalance`."""
    grid = (dict(zip(GRID, values, strict=True)) for values in itertools.product(*GRID.values()))
    made = (LlumnixPolicy.of_grid(point) for point in grid)
    return [{name: point[name] for name in _NAMES} for point in made]


def rounds(seeds: int) -> list[int]:
    """Seeds of each round."""
    return sorted({1, min(2, seeds), seeds})


def sweep_cases(name: str, settings: Iterable[Point], seeds: Sequence[int]) -> list[dict[str, Any]]:
    """Settings at every load of a workload ("W_A small")."""
    workload, configuration = name.split()
    return [
        {
            **TIMES[workload],
            **point,
            "workload": workload,
            "configuration": configuration,
            "load": load,
            "seed": seed,
            "policy": policy_text("llumnix", point),
        }
        for point, load, seed in itertools.product(settings, LOADS[name], seeds)
    ]


def run(case: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One episode of the sweep."""
    found = run_load(case)
    return [{name: found[name] for name in ("slo_attainment", "throughput_per_instance", "gpus")}]


def ranked(frame: DataFrame, tolerance: float) -> DataFrame:
    """Settings with their means, the best first by the rule of this module.

    Args:
        frame: a row per setting, workload, load and seed, with `_NAMES`, `slo_attainment`,
            `throughput_per_instance` and `gpus`.
        tolerance: see the module.
    """
    positive = frame.assign(throughput=frame["throughput_per_instance"].clip(lower=1e-9))
    grouped = positive.groupby(list(_NAMES))
    table = grouped[["slo_attainment", "gpus"]].mean()
    table["lowest"] = grouped["slo_attainment"].min()
    table["throughput"] = grouped["throughput"].agg(lambda x: float(np.exp(np.log(x).mean())))
    good = table["slo_attainment"] >= table["slo_attainment"].max() - tolerance
    table["order"] = np.where(good, 1 + table["throughput"], table["slo_attainment"])
    return table.sort_values("order", ascending=False, kind="stable")


def entry(table: DataFrame) -> dict[str, Any]:
    """The first setting of `ranked`, as the file has it."""
    high, low, batch_limit, rebalance = table.index[0]
    row = table.iloc[0]
    return {
        "high": float(high),
        "low": float(low),
        "batch_limit": int(batch_limit),
        "rebalance": bool(rebalance),
        "slo_attainment": round(float(row["slo_attainment"]), 4),
        "lowest_slo_attainment": round(float(row["lowest"]), 4),
        "throughput_per_instance": round(float(row["throughput"]), 3),
        "gpus": round(float(row["gpus"]), 2),
    }


def found_settings(
    run_all: Callable[[list[dict[str, Any]]], DataFrame], seeds: int
) -> dict[str, Any]:
    """The untuned settings and the tuned ones.

    Args:
        run_all: a row per case, as `ranked` takes them.
        seeds: of the last round.
    """
    limited = [point for point in points() if point["batch_limit"] == IMPLIED_LIMIT]
    # What is looked for: the workloads that count, the tolerance, the settings that are left.
    searches: dict[str, tuple[list[str], float, list[Point]]] = {
        "untuned": (list(LOADS), UNTUNED_TOLERANCE, points()),
        f"untuned_{IMPLIED_LIMIT}": (list(LOADS), UNTUNED_TOLERANCE, limited),
        **{name: ([name], TUNED_TOLERANCE, points()) for name in LOADS},
    }
    tables: dict[str, DataFrame] = {}
    for n_seeds in rounds(seeds):
        wanted = {
            name: [
                case
                for workload in workloads
                for case in sweep_cases(workload, left, range(FIRST_SEED, FIRST_SEED + n_seeds))
            ]
            for name, (workloads, _, left) in searches.items()
        }
        distinct = {str(case): case for cases in wanted.values() for case in cases}
        frame = run_all(list(distinct.values())).set_axis(list(distinct))
        for name, (workloads, tolerance, left) in searches.items():
            tables[name] = ranked(frame.loc[[str(case) for case in wanted[name]]], tolerance)
            kept = tables[name].index[: max(KEPT_LEAST, math.ceil(len(left) / KEPT_OF))]
            on = [dict(zip(_NAMES, values, strict=True)) for values in kept]
            on = [point for point in left if point in on]
            searches[name] = (workloads, tolerance, on)
    found = {name: entry(table) for name, table in tables.items()}
    return {
        **{name: value for name, value in found.items() if name not in LOADS},
        "tuned": {name: found[name] for name in LOADS},
    }


def _run(words: Sequence[str]) -> int:
    options = parse_options(words, ("seeds", "out", "cache", *_spread.WORDS))
    n_seeds = whole(options, "seeds", 8, 1, MAX_SEEDS)
    launcher = _spread.launcher_of(options)
    folder = Path(platformdirs.user_cache_dir("llmscale")) / "llumnix_sweep"
    if "cache" in options:
        check_folder("cache", Path(options["cache"]))
    path = Path(options.get("out", PATH))
    check_file("out", path)
    cache = RunCache(Path(options.get("cache", folder)), fingerprint(_MODULE, "run"))
    taken: dict[str, float] = {}

    def run_all(cases: list[dict[str, Any]]) -> DataFrame:
        return _run_all(cases, cache, launcher, taken)

    chosen = found_settings(run_all, n_seeds)
    rows = {name: value for name, value in chosen.items() if name != "tuned"} | chosen["tuned"]
    print(
        text_table(
            ("workload", *chosen["untuned"]),
            [(name, *value.values()) for name, value in rows.items()],
        )
    )
    print(f"{len(taken)} runs, {sum(taken.values()) / 60:.1f} core-minutes")
    kept = [word for word in words if word.startswith("seeds=")]
    content = {
        "command": " ".join([f"python -m {_MODULE}", *kept]),
        "seeds": [FIRST_SEED, FIRST_SEED + n_seeds - 1],
        "seeds_by_round": rounds(n_seeds),
        "settings_tried": len(points()),
        **chosen,
    }
    text = f"# Written by {_MODULE}; the command below makes it anew.\n"
    text += yaml.safe_dump(content, sort_keys=False)
    replace_file(path, lambda part: _write(part, text))
    print(f"written: {path}")
    return 0


def _run_all(
    cases: list[dict[str, Any]], cache: RunCache, launcher: Any, taken: dict[str, float]
) -> DataFrame:
    """Rows of the cases in their order, from the cache or run now; `taken` learns the time of each."""
    from tqdm import tqdm

    from experiments.harness.results import frame_of

    known = {str(case): cache.get(case) for case in cases}
    todo = [case for case in cases if known[str(case)] is None]
    for outcome in tqdm(outcomes(_MODULE, todo, launcher), total=len(todo), unit="run"):
        if outcome.error:
            raise Slip(f"{dict(outcome.case)}: {outcome.error}")
        cache.put(outcome.case, outcome.rows, outcome.wall_s)
        known[str(dict(outcome.case))] = outcome.rows, outcome.wall_s
    done = {name: found for name, found in known.items() if found is not None}
    taken.update({name: wall_s for name, (_, wall_s) in done.items()})
    return frame_of(cases, [done[str(case)][0] for case in cases])


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


def main(words: Sequence[str] | None = None) -> int:
    """Run the command; 0 when it worked, 2 for a slip."""
    kept = "interrupted; finished runs are kept, the same command goes on from there"
    return run_command(
        *("llumnix_sweep", __doc__, words, _run),
        interrupted=kept,
        wordless=True,
        slips=(OtherCode, WorkerLost),
    )


if __name__ == "__main__":
    sys.exit(main())
