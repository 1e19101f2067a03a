"""Print the least GPU time that could serve the episodes of a scenario, with the future known.

    llmscale clairvoyant env=NAME [KEY=VALUE ...]   (or: python -m baselines.clairvoyant ...)

    env=NAME|FILE.yaml      what is simulated; scenario.fleet.max_gpus=12 ... changes it
    seeds=3                 episodes, with the seeds SEED, SEED + 1, ...
    seed=0                  first seed
    attainment=0.99         share of the arrivals of every class that must be on time
    slot_s=10               length of a slot
    policies=A,B,C          also run these reference policies on the same episodes, and show which
                            share of their GPU time the bound is

Needs the extra "solver". docs/clairvoyant.md has the proof. Exit codes: 0 done, 2 after a slip.

Examples:
    llmscale clairvoyant env=mixed-slo-hours
    llmscale clairvoyant env=mixed-slo-hours seeds=10 policies=chiron,hpa-tuned
    llmscale clairvoyant env=mixed-slo-hours scenario.fleet.max_gpus=12 attainment=0.95
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence

from tqdm import tqdm

from baselines.clairvoyant.bound import Bound, clairvoyant_bound
from baselines.make import make_policy
from baselines.parameters import split_policies
from baselines.solver import SolverMissing
from llmscale_env._cli import (
    Slip,
    number,
    parse_options,
    run_command,
    scenario_of,
    split_scenario_words,
    whole,
)
from llmscale_env.control.policy import Policy
from llmscale_env.control.results.result import on_time_share
from llmscale_env.control.run import run_episode
from llmscale_env.scenarios import Scenario, load_scenario, scenario_names
from llmscale_env.scenarios.basis import times_told

_WORDS = ("env", "seeds", "seed", "attainment", "slot_s", "policies")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line: 0 done, 2 after a slip (named in one line), 130 when interrupted."""
    return run_command("clairvoyant", __doc__, argv, _show, slips=(ValueError, SolverMissing))


def _show(words: Sequence[str]) -> int:
    plain, overrides = split_scenario_words(words)
    options = parse_options(plain, _WORDS)
    if "env" not in options:
        raise Slip("env= is missing, such as env=mixed-slo-hours")
    scenario = load_scenario(scenario_of(options["env"], scenario_names()), **overrides)
    first, episodes = whole(options, "seed", 0, 0, 2**31 - 1), whole(options, "seeds", 3, 1, 1000)
    attainment = number(options, "attainment", 0.99, 0.0, 1.0, above=True)
    slot_s = number(options, "slot_s", 10.0, 0.01, scenario.horizon_s)
    policies = [make_policy(name) for name in split_policies(options.get("policies", ""))]
    heads = ["seed", "requests", "possible", "prefill GPU-s", "decode GPU-s", "loading GPU-s"]
    heads += ["bound GPU-s", "bound GPU-h"]
    title = f"{scenario.name}, {100 * attainment:g} % of every class on time, slots of {slot_s:g} s"
    for seed in tqdm(range(first, first + episodes), unit="episode", disable=None, leave=False):
        bound = clairvoyant_bound(scenario, seed, attainment, slot_s)
        if seed == first:  # whatever is refused is refused before the first word
            tqdm.write("\n".join([*times_told(scenario), title, "  ".join(heads)]))
        sizes = (bound.requests, bound.possible)
        parts = (bound.prefill_gpu_s, bound.decode_gpu_s, bound.loading_gpu_s, bound.gpu_s)
        cells = [f"{seed:4d}", *map(str, sizes), *(f"{part:.1f}" for part in parts)]
        cells.append(f"{bound.gpu_hours:.3f}")
        line = "  ".join(f"{c:>{len(head)}}" for c, head in zip(cells, heads, strict=True))
        tqdm.write(line + ("" if bound.status == "optimal" else f"  {bound.status}"))
        for policy in policies:
            _compare(policy, scenario, seed, bound, attainment)
    return 0


def _compare(
    policy: Policy, scenario: Scenario, seed: int, bound: Bound, attainment: float
) -> None:
    summary = run_episode(policy, scenario, seed).summary
    every = {c.name: on_time_share(summary, c.name) for c in scenario.classes}
    shares = {name: share for name, share in every.items() if not math.isnan(share)}
    gpu_s = summary["gpu_hours"] * 3600
    attained = all(share >= attainment for share in shares.values())
    told = ", ".join(f"{name} {100 * share:.2f} %" for name, share in shares.items())
    verdict = (
        f"bound is {100 * bound.gpu_s / gpu_s:.1f} % of it" if attained else "does not attain it"
    )
    tqdm.write(f"      {policy.name}: {gpu_s:.0f} GPU-s, {told}: {verdict}")


if __name__ == "__main__":
    sys.exit(main())
