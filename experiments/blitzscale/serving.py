"""What BlitzScale's serving figures share: clusters, systems, one episode and what is measured of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from baselines import make_policy
from experiments.blitzscale.setting import SCENARIOS, SETTINGS, Workload
from llmscale_env.cluster.cards import llm_card
from llmscale_env.control.command import Command
from llmscale_env.control.policy import Policy
from llmscale_env.control.reward import draw_requests
from llmscale_env.control.run import run_episode
from llmscale_env.control.scaling import FleetSeen
from llmscale_env.control.view import ClusterView
from llmscale_env.scenarios.load import load_scenario
from llmscale_env.scenarios.schema import Scenario
from llmscale_env.sim.picoseconds import ps
from llmscale_env.sim.spec import InstanceState
from llmscale_env.workload.requests import RequestTable

if TYPE_CHECKING:
    from llmscale_env.control.results.result import EpisodeResult

PREFILL, DECODE = 0, 1
"""Pools of those scenarios."""

DOING = ("loading", "working", "idle")
"""What a GPU that is held does: its instance loads, has requests (or drains), or has none."""


SystemName = Literal[
    "blitzscale", "serverlessllm", "serverlessllm-30s", "serverlessllm-logical", "serverlessllm-code",
    "allcache",
    "distserve", "distserve-half",
    "network", "interference-free", "network-last", "interference-free-last",
]  # fmt: skip
"""Names in `SYSTEMS`."""


@dataclass(frozen=True)
class System:
    """What is compared.

    Attributes:
        shown: for pictures.
        policy: a registered one, with its parameters; `{tp}` is the GPUs of an instance, `{node}` those of
            the released code's hosts (`policy_of`).
        changes: to the scenario.
        colour, line: in pictures.
    """

    shown: str
    policy: str
    colour: str
    line: str = "-"
    changes: Mapping[str, Any] = field(default_factory=dict)


SYSTEMS = {
    "blitzscale": System("BlitzScale", "blitzscale", "C0"),
    "serverlessllm": System("ServerlessLLM, 5 min", "serverlessllm:keep_alive_s=300", "C3"),
    "serverlessllm-30s": System("ServerlessLLM, 30 s", "serverlessllm:keep_alive_s=30", "C3", "--"),
    "serverlessllm-logical": System(
        "ServerlessLLM, hosts of one instance",
        "serverlessllm:keep_alive_s=300,logical_host_gpus={tp}", "C6",
    ),
    "serverlessllm-code": System(
        "ServerlessLLM, 30 s, the code's hosts",
        "serverlessllm:keep_alive_s=30,logical_host_gpus={node}", "C9",
    ),
    "allcache": System(
        "AllCache", "allcache", "C2", changes={"fleet.host_cache": "always"}
    ),
    "distserve": System("DistServe (full)", "distserve:share=1", "C4"),
    "distserve-half": System("DistServe (half)", "distserve:share=0.5", "C4", "--"),
    "network": System(
        "+network", "blitzscale:live=False,interference_free=False", "C1"
    ),
    "interference-free": System("+interference-free", "blitzscale:live=False", "C5"),
    "network-last": System(
        "+network, copy last", "blitzscale:live=False,interference_free=False,host_copy=last",
        "C1", "--",
    ),
    "interference-free-last": System(
        "+interference-free, copy last", "blitzscale:live=False,host_copy=last", "C5", "--"
    ),
}  # fmt: skip
"""Section 6. Logical hosts hold one instance (section 6.2, Figure 16).

The released code keeps ServerlessLLM's copies for 30 s, and its configurations have hosts of four GPUs for
models of one GPU, of eight for those of four (`num_gpus_per_node`); the others are steps of Figure 17,
the last two with the pool's copy in memory as a source only while no instance has the weights."""


def policy_of(name: Workload, system: str) -> str:
    """The policy of a system in a column of Figure 13, with its parameters."""
    tp = SETTINGS[name].tp
    return SYSTEMS[system].policy.format(tp=tp, node=4 if tp == 1 else 8)


def scenario_of(name: Workload, system: str, **changes: Any) -> Scenario:
    """The cluster of a column of Figure 13 as a system finds it."""
    return load_scenario(SCENARIOS[name], **{**SYSTEMS[system].changes, **changes})


def episode(
    scenario: Scenario,
    policy: Policy,
    seed: int,
    arrivals_s: float,
    patience_s: float,
    part_s: float | None = None,
) -> EpisodeResult:
    """Requests come for a while, then there is time for them to end.

    With `part_s` only those come that are `around_peak`.
    """
    short = load_scenario(scenario, horizon_s=arrivals_s)
    requests = draw_requests(short, np.random.default_rng(seed))
    if part_s is not None:
        requests, arrivals_s = around_peak(requests, part_s), part_s
    long = load_scenario(scenario, horizon_s=arrivals_s + patience_s)
    return run_episode(policy, long, seed, requests=requests, forecaster=None)


def around_peak(requests: RequestTable, part_s: float) -> RequestTable:
    """The requests of so many seconds around the one in which most come, from the time that these begin."""
    rates = np.bincount(requests.arrival_s.astype(np.int64), minlength=1)
    from_s = max(0.0, min(float(rates.argmax()) + 0.5, len(rates) - part_s / 2) - part_s / 2)
    return requests.between(ps(from_s), ps(from_s + part_s))


def serve(scenario: Scenario, policy: str, case: Mapping[str, Any]) -> EpisodeResult:
    """One episode of a registered policy; `case` has what `episode` takes, by name."""
    return episode(
        scenario,
        make_policy(policy),
        case["seed"],
        case["arrivals_s"],
        case["patience_s"],
        case.get("part_s"),
    )


def measured(result: EpisodeResult, scenario: Scenario) -> dict[str, float | None]:
    """Latencies of an episode.

    Who has no first token at the horizon has waited until then, at least: a lower bound stands for the TTFT,
    or who serves fewest would look best.

    Returns:
        `requests`, `unfinished`; `ttft_*_s` over requests, `tbt_*_s` over the mean time between tokens of
        requests with two or more (KV transfer included); shares that keep the targets; `gpu_s` billed;
        `loads`, `loads_ssd`, `loads_host`, `loads_multicast`.
    """
    table, summary = result.requests, result.summary
    (target,) = scenario.classes
    found: dict[str, float | None] = {"requests": len(table)}
    if len(table):
        waited = summary["horizon_s"] - table["arrival_s"]
        ttft, tbt = table["ttft_s"].fillna(waited), table["itl_mean_s"].dropna()
        ended = table["outcome"].isin(["on_time", "late"])
        found["unfinished"] = int((~ended).sum())
        found["ttft_attainment"] = float((ttft <= target.ttft_s).mean())
        found["tbt_attainment"] = float((ended & ~(table["itl_mean_s"] > target.itl_s)).mean())
        for name, values in (("ttft", ttft), ("tbt", tbt)):
            some = len(values) > 0
            found[f"{name}_mean_s"] = float(values.mean()) if some else None
            for q in (50, 95, 99):
                found[f"{name}_p{q}_s"] = float(values.quantile(q / 100)) if some else None
    found["gpu_s"] = float(summary["gpu_seconds"])
    for source in ("ssd", "host", "multicast"):
        found[f"loads_{source}"] = int(summary[f"loads_{source}"])
    return found


class Watched:
    """A policy, and what is seen of the cluster whenever it decides.

    Attributes:
        time_s: of the looks.
        sent: share of all GPUs' links to other machines that is in use, at each look.
        gpus: billed ones by pool, at each look.
        doing: billed ones by what they do (`DOING`), at each look.
        loading: instances that load, at each look.
    """

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.name = policy.name
        self.time_s: list[float] = []
        self.sent: list[float] = []
        self.gpus: list[NDArray[np.int64]] = []
        self.doing: list[NDArray[np.int64]] = []
        self.loading: list[int] = []

    def reset(self, scenario: Scenario, seed: int) -> None:
        """Forget the last episode."""
        self.policy.reset(scenario, seed)
        pools = scenario.fleet.pools
        self._tp = np.array([pool.tp for pool in pools])
        self._pool = np.repeat(np.arange(len(pools)), [pool.max_instances for pool in pools])
        self._own = self._tp[self._pool] / scenario.fleet.max_gpus
        self.time_s, self.sent, self.gpus, self.doing, self.loading = [], [], [], [], []

    def act(self, view: ClusterView) -> Command:
        """Look, then let the policy decide."""
        seen = view.weights
        state = seen.instances[0]["state"]
        held = ~np.isin(state, (InstanceState.OFF, InstanceState.ACQUIRING))
        count = np.bincount(self._pool[held], minlength=len(self._tp))
        # A slot's link is as wide as those of all its GPUs.
        sent = float((seen.out_use[0] * self._own).sum())
        self.time_s.append(view.time_s)
        self.sent.append(sent)
        self.gpus.append(count * self._tp)
        loads = state == InstanceState.LOADING
        idle = (state == InstanceState.ACTIVE) & (FleetSeen.of(seen).requests == 0)
        what = np.where(loads, 0, np.where(idle, 2, 1))[held]
        size = self._tp[self._pool[held]]
        self.doing.append(np.bincount(what, weights=size, minlength=len(DOING)).astype(np.int64))
        self.loading.append(int(loads.sum()))
        return self.policy.act(view)


def with_stop(scenario: Scenario, stop_s: float) -> Scenario:
    """Every load takes so long, from the own machine's memory, whoever else loads: for policy `allcache`.

    The speed of the link from memory is chosen for it; KV caches cross other links.
    """
    pool = scenario.fleet.pools[0]
    per_gpu = llm_card(pool.llm).weight_bytes / pool.tp
    return load_scenario(
        scenario,
        **{
            "fleet.host_cache": "always",
            "network.host_bytes_per_s": per_gpu / max(stop_s, 1e-6),
            "network.pcie_bytes_per_s": None,
        },
    )
