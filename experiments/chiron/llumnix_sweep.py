"""Llumnix's settings for Chiron's evaluation: one for all its workloads, and one for each.

    python -m experiments.chiron.llumnix_sweep [seeds=1] [workers=N] [launcher=ray] [out=FILE]

    seeds=N      episodes per setting and load: seeds 1000, 1001, ...; no experiment uses them
    workers=N    processes; one per processor if left out
    launcher=ray  episodes are tasks of a Ray cluster (ray.address=, as in experiments.run)
    out=FILE     experiments/chiron/llumnix.yaml if left out

Chiron, section 6: base Llumnix has "the configuration that maximizes SLO satisfaction across all
workloads", and for "Llumnix (tuned)" there is "a parameter sweep per-workload to find the configuration that
maximizes SLO attainment and throughput". The workloads are W_A and W_B in the configurations small, large
and mixed, each at two loads.

Ours: the grid; how two aims become one order. A setting is as good as another in attainment if its mean
is within a tolerance of the best one's; of those the one with the highest throughput per instance is taken
(geometric mean over the loads, so that each counts alike). The tolerance is 0.1 percentage points for the
untuned one, which the paper chooses by attainment alone, and one point for the tuned ones.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import yaml

from baselines.llumnix import LlumnixPolicy
from baselines.tune import FIRST_SEED, MAX_SEEDS
from experiments.chiron.llumnix_settings import PATH, policy_text
from experiments.chiron.loads import run_load
from experiments.harness.execute import Outcome, outcomes
from experiments.output import replace_file, text_table
from llmscale_env import _spread
from llmscale_env._cli import HELP_WORDS, Slip, parse_options, whole

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
_NAMES = ("high", "low", "batch_limit", "rebalance")


def points() -> list[dict[str, Any]]:
    """The grid's settings: `high`, `low`, `batch_limit`, `rebalance`."""
    grid = (dict(zip(GRID, values, strict=True)) for values in itertools.product(*GRID.values()))
    made = (LlumnixPolicy.of_grid(point) for point in grid)
    return [{name: point[name] for name in _NAMES} for point in made]


def sweep_cases(seeds: Sequence[int]) -> list[dict[str, Any]]:
    """Every setting at every load of every workload."""
    found = []
    for name, loads in LOADS.items():
        workload, configuration = name.split()
        for point, load, seed in itertools.product(points(), loads, seeds):
            found.append(
                {
                    **TIMES[workload],
                    **point,
                    "workload": workload,
                    "configuration": configuration,
                    "load": load,
                    "seed": seed,
                    "policy": policy_text("llumnix", point),
                }
            )
    return found


def run(case: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One episode of the sweep."""
    found = run_load(case)
    return [{name: found[name] for name in ("slo_attainment", "throughput_per_instance", "gpus")}]


def best(frame: DataFrame, tolerance: float) -> dict[str, float]:
    """The setting that the rule of this module chooses, with its means.

    Args:
        frame: a row per setting, workload, load and seed, with `_NAMES`, `workload`, `configuration`, `load`,
            `slo_attainment`, `throughput_per_instance` and `gpus`.
        tolerance: see the module.
    """
    positive = frame.assign(throughput=frame["throughput_per_instance"].clip(lower=1e-9))
    grouped = positive.groupby(list(_NAMES))
    table = grouped[["slo_attainment", "gpus"]].mean()
    table["throughput"] = grouped["throughput"].agg(lambda x: float(np.exp(np.log(x).mean())))
    good = table[table["slo_attainment"] >= table["slo_attainment"].max() - tolerance]
    chosen = good["throughput"].idxmax()
    row = table.loc[chosen]
    return {
        **{name: float(value) for name, value in zip(_NAMES, chosen, strict=True)},
        "batch_limit": int(chosen[_NAMES.index("batch_limit")]),
        "rebalance": bool(chosen[_NAMES.index("rebalance")]),
        "slo_attainment": round(float(row["slo_attainment"]), 4),
        "throughput_per_instance": round(float(row["throughput"]), 3),
        "gpus": round(float(row["gpus"]), 2),
    }


def found_settings(frame: DataFrame) -> dict[str, Any]:
    """The untuned setting and the tuned ones."""
    tuned = {
        f"{workload} {configuration}": best(mine, TUNED_TOLERANCE)
        for (workload, configuration), mine in frame.groupby(
            ["workload", "configuration"], sort=False
        )
    }
    return {"untuned": best(frame, UNTUNED_TOLERANCE), "tuned": tuned}


def _run(words: Sequence[str]) -> None:
    from tqdm import tqdm

    from experiments.harness.results import frame_of

    options = parse_options(words, ("seeds", "out", *_spread.WORDS))
    n_seeds = whole(options, "seeds", 1, 1, MAX_SEEDS)
    launcher = _spread.launcher_of(options)
    cases = sweep_cases(range(FIRST_SEED, FIRST_SEED + n_seeds))
    done: list[Outcome] = []
    ended = outcomes("experiments.chiron.llumnix_sweep", cases, launcher)
    for outcome in tqdm(ended, total=len(cases), unit="run"):
        if outcome.error:
            raise Slip(f"{dict(outcome.case)}: {outcome.error}")
        done.append(outcome)
    frame = frame_of([o.case for o in done], [o.rows for o in done])
    chosen = found_settings(frame)
    rows = {"all": chosen["untuned"], **chosen["tuned"]}
    print(
        text_table(
            ("workload", *chosen["untuned"]),
            [(name, *entry.values()) for name, entry in rows.items()],
        )
    )
    print(f"{len(cases)} runs, {sum(o.wall_s for o in done) / 60:.1f} core-minutes")
    kept = [word for word in words if word.startswith("seeds=")]
    content = {
        "command": " ".join(["python -m experiments.chiron.llumnix_sweep", *kept]),
        "seeds": [FIRST_SEED, FIRST_SEED + n_seeds - 1],
        "settings_tried": len(points()),
        **chosen,
    }
    text = "# Written by experiments.chiron.llumnix_sweep; the command below makes it anew.\n"
    text += yaml.safe_dump(content, sort_keys=False)
    path = Path(options.get("out", PATH))
    replace_file(path, lambda part: _write(part, text))
    print(f"written: {path}")


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


def main(words: Sequence[str] | None = None) -> int:
    """Run the command; 0 when it worked, 2 for a slip."""
    words = list(sys.argv[1:] if words is None else words)
    if any(word in HELP_WORDS for word in words):
        print(__doc__)
        return 0
    try:
        _run(words)
    except Slip as slip:
        print(f"llumnix_sweep: {slip}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
