"""The runs of a table: every policy at every setting, on the same windows; an episode as a row.

A window is an episode's requests: one seed. Windows of validation workloads have seeds from 40,000, those of
test workloads from 30,000; the seeds of tuning (1,000), evaluation (10,000) and validation while training
(20,000) are not among them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from baselines import make_policy
from experiments.harness.parameters import FIRST_SEED
from experiments.learned.family import Workload, digest_of, scenario_of
from experiments.learned.knobs import base_of, turned
from experiments.learned.runs import Run
from llmscale_env.control.policy import Policy
from llmscale_env.control.run import run_episode
from llmscale_env.control.simulation import ClusterSimulation
from llmscale_env.scenarios import Scenario

if TYPE_CHECKING:
    from agents.learned import LearnedPolicy
    from llmscale_env.control.results.result import EpisodeResult

Case = dict[str, Any]
Row = dict[str, Any]

FIRST_WINDOW = {"test": FIRST_SEED, "validation": FIRST_SEED + 10_000}
CLASSES = ("interactive", "batch")

ANY_OF_VALIDATION = "any workload of validation"
"""The base of policies whose settings are chosen on several workloads, made for one of them each."""

BLIND_SEED = FIRST_WINDOW["validation"] - 1
"""Of the episode from which a blind policy has the means of what it no longer sees."""


def heuristic_cases(
    policies: Sequence[str],
    factors: Sequence[float],
    test: Sequence[Workload],
    validation: Sequence[Workload],
    windows: Mapping[str, int],
    skip: int = 0,
) -> list[Case]:
    """Runs of heuristics: on every test workload, and on those by which its setting is chosen.

    Where those are several (a dropped-in trace), what was tuned on each of them is a setting of one policy.

    Args:
        policies: names.
        factors: of their knobs.
        test, validation: workloads.
        windows: how many, by split.
        skip: windows of the test that are left out before them.
    """
    by_name = {w.name: w for w in validation}
    made: dict[tuple[Any, ...], Case] = {}
    for target in test:
        chosen_on = [by_name[name] for name in target.validated_on if name in by_name]
        scenario = scenario_of(target.data)
        for policy in policies:
            found = [base_of(policy, name) for name in target.validated_on or (None,)]
            bases = {base.source: base for base in found}
            for source, base in bases.items():
                seen: list[dict[str, Any]] = []
                for factor in factors:
                    parameters = turned(policy, base.parameters, factor, scenario)
                    if (
                        parameters is None or parameters in seen
                    ):  # whole fleets, shares at their limit
                        continue
                    seen.append(parameters)
                    alone = len(bases) == 1
                    who = {
                        "policy": policy,
                        "setting": f"x{factor:g}" if alone else f"{source}, x{factor:g}",
                        "base": source if alone else ANY_OF_VALIDATION,
                        "training_seed": 0,
                        "learned": False,
                        "parameters": parameters,
                    }
                    for workload in (target, *chosen_on):
                        key = (policy, who["base"], who["setting"], workload.name)
                        made[key] = who | place(workload, windows[workload.split], skip)
    return list(in_parts(made.values()))


def learned_cases(
    runs: Sequence[Run],
    test: Sequence[Workload],
    validation: Sequence[Workload],
    windows: Mapping[str, int],
    quantiles: Sequence[float] = (),
    skip: int = 0,
) -> list[Case]:
    """Runs of learned policies, each training seed apart.

    Args:
        runs: that compete.
        test, validation, windows, skip: as `heuristic_cases`.
        quantiles: of their instance counts, each a setting beside what the run says. That one alone have
            networks that remember or decide no counts, and those that have seen the test, which win nothing
            anyway.
    """
    by_name = {w.name: w for w in validation}
    made: dict[tuple[Any, ...], Case] = {}
    for run in runs:
        for target in test:
            if not run.competes_on(target):
                continue
            chosen_on = [by_name[name] for name in target.validated_on if name in by_name]
            one_of_several = bool(run.made_for) and len(target.validated_on) > 1
            for quantile in (None, *(quantiles if run.turns and not run.leaks else ())):
                who = learned_who(run, quantile, one_of_several)
                for workload in (target, *chosen_on):
                    key = (run.path, who["base"], who["setting"], workload.name)
                    made[key] = who | place(workload, windows[workload.split], skip)
    return list(in_parts(made.values()))


def learned_who(run: Run, quantile: float | None = None, one_of_several: bool = False) -> Case:
    """The part of a case that says which learned policy, and which quantile of its instance counts.

    Args:
        run: the training.
        quantile: None: what the run says.
        one_of_several: whether networks of several workloads compete as settings of one policy.
    """
    turned = {} if quantile is None else {"quantile": quantile}
    base = f"trained on {run.made_for or 'the training split'}"
    setting = run.setting + (f"{_QUANTILE}{quantile:g}" if quantile is not None else "")
    if one_of_several:
        base, setting = ANY_OF_VALIDATION, f"{base}, {setting}"
    policy = run.policy
    if run.leaks:
        base = "leaks " + ", ".join(run.leaks)
        policy += f", {base}"
    return {
        "policy": policy,
        "setting": setting,
        "base": base,
        "training_seed": run.training_seed,
        "learned": True,
        "model": run.path,
        "digest": run.digest,
        **turned,
    }


_QUANTILE = ", quantile "
"""Between what a learned policy's setting was trained for, and how its network is read."""


def trained_as(setting: str) -> str:
    """Which training a learned policy's setting belongs to: the setting without its quantile."""
    return setting.partition(_QUANTILE)[0]


AT_ONCE = 20
"""Windows of one case: those that a smaller table has had are not run again for a larger one."""


def in_parts(cases: Iterable[Case]) -> Iterator[Case]:
    """Cases of at most `AT_ONCE` windows each."""
    for case in cases:
        windows = case["windows"]
        for first in range(0, len(windows), AT_ONCE):
            yield {**case, "windows": windows[first : first + AT_ONCE]}


LESS = (0.0, 0.005, 0.01)
"""How much less attainment than the target bounds are computed for: some windows allow nobody more."""


def bound_cases(
    test: Sequence[Workload], windows: int, attainment: float, slot_s: float, skip: int = 0
) -> list[Case]:
    """The clairvoyant bound of every window, one each, since one takes seconds; and those of a little less
    (`LESS`), which count where `attainment` is impossible (`standings.bounds_of`).
    """
    what = {"kind": "bound", "slot_s": slot_s}
    return [
        {**place(w, 1), **what, "attainment": part, "seed": seed, "windows": [seed]}
        for w in test
        for seed in place(w, windows, skip)["windows"]
        for part in [round(attainment - less, 6) for less in LESS]
        if part > 0
    ]


def place(workload: Workload, windows: int, skip: int = 0) -> Case:
    """The part of a case that says where: so many windows, those of the test after the first `skip`."""
    first = FIRST_WINDOW[workload.split] + (skip if workload.split == "test" else 0)
    found: Case = {
        "kind": "policy",
        "workload": workload.name,
        "split": workload.split,
        "shape": workload.shape,
        "data": workload.data,
        "windows": list(range(first, first + windows)),
        "overrides": {},
    }
    for path in _files(workload.data):
        found["content"] = digest_of(path)
    return found


def _files(data: Any) -> Iterable[str]:
    """Trace files that a workload reads."""
    streams = data["streams"] if isinstance(data, Mapping) else []
    return [s["arrivals"]["path"] for s in streams if isinstance(s["arrivals"], dict)]


def play(case: Mapping[str, Any]) -> list[Row]:
    """The rows of a case: an episode each, or the bound of a window."""
    scenario = scenario_of(case["data"], case["overrides"])
    if case["kind"] == "bound":
        return [_bound(scenario, case["seed"], case["attainment"], case["slot_s"])]
    policy = policy_of(case)
    simulation = ClusterSimulation(scenario)
    if "blind" in case:
        from experiments.learned.blind import blind

        blind(cast("LearnedPolicy", policy), case["blind"], simulation, BLIND_SEED)
    return [
        episode_row(
            run_episode(
                policy, scenario, seed, simulation=simulation, forecaster=seen_by(policy, case)
            ),
            scenario,
        )
        for seed in case["windows"]
    ]


def policy_of(case: Mapping[str, Any]) -> Policy:
    """The policy that a case names."""
    if not case["learned"]:
        return make_policy(case["policy"], **case["parameters"])
    import torch

    from agents.learned import LearnedPolicy

    torch.set_num_threads(1)
    return LearnedPolicy(case["model"], name=case["policy"], quantile=case.get("quantile"))


def seen_by(policy: Policy, case: Mapping[str, Any]) -> Any:
    """The forecaster that a policy sees: its own, unless the case takes it away or names another."""
    if "forecaster" in case:
        return case["forecaster"]
    if not case["learned"]:
        return None  # no heuristic reads it
    from agents.runs.comparison import forecaster_of

    return forecaster_of(policy)


def episode_row(result: EpisodeResult, scenario: Scenario) -> Row:
    """What tables show of an episode.

    Returns:
        `window`, `gpu_hours`, `reward`, `joint_attainment`, `CLASS_attainment`, `violations` (late,
        rejected or unfinished) and `rejected` requests, `ttft_s_p99`, `itl_s_p99` (of interactive
        requests, since those of batch work are its wait in the queue), `CLASS_ttft_s_p99`, `scaling_actions`.
    """
    found = result.summary
    missed = sum(found[f"joint/{how}"] for how in ("late", "rejected", "unfinished"))
    row: Row = {
        "window": result.seed,
        "gpu_hours": found["gpu_hours"],
        "reward": found["reward"],
        "joint_attainment": found["joint/slo_attainment"],
        "violations": missed,
        "rejected": found["joint/rejected"],
        "ttft_s_p99": found["interactive/ttft_s_p99"],
        "itl_s_p99": found["interactive/itl_s_p99"],
        "scaling_actions": found["scaling_actions"],
    }
    for c in scenario.classes:
        row[f"{c.name}_attainment"] = found[f"{c.name}/slo_attainment"]
        row[f"{c.name}_ttft_s_p99"] = found[f"{c.name}/ttft_s_p99"]
    return row


def _bound(scenario: Scenario, seed: int, attainment: float, slot_s: float) -> Row:
    from baselines.clairvoyant import clairvoyant_bound

    bound = clairvoyant_bound(scenario, seed, attainment, slot_s)
    hours = bound.gpu_hours if bound.status == "optimal" else None
    return {"window": seed, "bound_gpu_hours": hours, "bound_status": bound.status}
