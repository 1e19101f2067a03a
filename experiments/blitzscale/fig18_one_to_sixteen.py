"""From one copy of Llama-2-7B to 16 prefill instances on cluster A, over time.

One prefill instance serves when more requests come than it can take, enough to nearly fill 16. BlitzScale
loads from that instance: over NVLink to its machine's other seven GPUs, over the network to a second machine,
live as soon as the first serves. ServerlessLLM has the copy in the first machine's memory, the second one
loads from SSD.

On the second machine GPUs hand layers on over NVLink, and each instance of the first machine is helped by one
that still loads. Prompts have 2,000 tokens, as many are prefilled at a time, and answers one token, as only
prefill is looked at. Ours: Poisson arrivals from the order on; instances of the second machine are ordered
when those they help serve, since an engine pairs with who serves.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from agents.statistics import mean_interval
from baselines.blitzscale.trigger import prefill_tokens_per_s
from experiments.blitzscale.serving import episode
from experiments.harness.claims import Claim, about, more
from experiments.harness.figure import dress, where
from experiments.harness.parameters import Parameters, ours, paper
from experiments.harness.picture import Published
from experiments.output import new_figure
from llmscale_env.control.command import Command
from llmscale_env.control.scaling import FleetSeen, Scaler
from llmscale_env.control.view import ClusterView
from llmscale_env.scenarios.load import load_scenario
from llmscale_env.scenarios.schema import Scenario
from llmscale_env.sim.compile import pool_times
from llmscale_env.sim.orders import Loads
from llmscale_env.sim.spec import FROM_SSD, InstanceState

if TYPE_CHECKING:
    from pandas import DataFrame

FIGURE = "Figure 18"
SYSTEMS = {
    "live": ("BlitzScale, live", "C0", "-"),
    "stop": ("BlitzScale, without live scaling", "C1", "-"),
    "serverlessllm": ("ServerlessLLM", "C3", "-"),
}
LIVE, STOP, SLLM = SYSTEMS
GPUS_PER_HOST = 8


class OneToSixteen(Parameters):
    """Parameters of this figure."""

    seeds: Annotated[int, ours("other arrivals", ge=1)] = 20
    instances: Annotated[int, paper("Figure 18", ge=2, le=16)] = 16
    prompt_tokens: Annotated[int, paper("section 5.2: a moderate batch", ge=1)] = 2000
    load: Annotated[float, ours("of what 16 instances prefill", gt=0)] = 0.9
    arrivals_s: Annotated[float, ours("until after ServerlessLLM's last load", gt=0)] = 13.5
    look_s: Annotated[float, ours("resolution of times", gt=0)] = 0.01
    bin_s: Annotated[float, ours("a prompt takes 0.145 s", gt=0)] = 0.15


PARAMETERS = {"quick": OneToSixteen(seeds=5), "paper": OneToSixteen()}


def cases(parameters: OneToSixteen) -> list[dict[str, Any]]:
    """A run per system and seed."""
    common = parameters.model_dump(exclude={"seeds"})
    return [
        {**common, "system": system, "seed": seed}
        for system in SYSTEMS
        for seed in parameters.seed_list()
    ]


def scenario_of(case: Mapping[str, Any]) -> Scenario:
    """Cluster A with one prefill instance; the decode pool is there, as routes need one, and does nothing."""
    base = load_scenario("blitzscale-azure-code-7b")
    prefill = base.fleet.pools[0]
    speed = prefill_tokens_per_s(pool_times(base, prefill), case["prompt_tokens"])
    rate = case["load"] * case["instances"] * speed / case["prompt_tokens"]
    lengths = {"kind": "fixed", "input_tokens": case["prompt_tokens"], "output_tokens": 1}
    stream = {
        "name": "prompts", "llm": prefill.llm, "slo_class": "interactive", "lengths": lengths,
        "arrivals": {"kind": "poisson"}, "rate_per_s": rate,
    }  # fmt: skip
    return load_scenario(
        base,
        control_interval_s=case["look_s"],
        workload={"streams": [stream]},
        **{
            "fleet.pools.prefill.initial_instances": 1,
            "fleet.pools.prefill.prefill_tokens": case["prompt_tokens"],
            "fleet.host_copies": "none",
        },
    )


class Grows:
    """Starts all instances but the first, in the way of a system.

    Attributes:
        active: (time, instances that serve) at each look.
    """

    def __init__(self, system: str, instances: int) -> None:
        self.name = system
        self.instances = instances
        self.active: list[tuple[float, int]] = []

    def reset(self, scenario: Scenario, seed: int) -> None:
        """One instance serves."""
        self.scaler = Scaler(scenario)
        self.near = list(range(1, min(self.instances, GPUS_PER_HOST)))
        self.far = list(range(GPUS_PER_HOST, self.instances))
        self.active, self.waits = [], list(self.far)

    def act(self, view: ClusterView) -> Command:
        """All at once, but with live scaling the second machine after the first."""
        seen = FleetSeen.of(view.weights)
        mine = self.scaler.slots[0]
        serving = mine[seen.state[mine] == InstanceState.ACTIVE].tolist()
        self.active.append((view.time_s, len(serving)))
        if view.step == 0:
            if self.name == SLLM:
                memory = [self.scaler.topology.memory(0)] * len(self.near)
                sources = (*memory, *[FROM_SSD] * len(self.far))
                return Command(scale=Loads((*self.near, *self.far), tuple(sources)))
            if self.name == STOP or not self.waits:
                return Command(scale=self._from(seen, [*self.near, *self.far], ()))
            return Command(scale=self._from(seen, self.near, ()))
        if self.name == LIVE and self.waits and len(serving) == 1 + len(self.near):
            self.waits = []
            return Command(scale=self._from(seen, self.far, serving))
        return Command()

    def _from(self, seen: FleetSeen, slots: list[int], helped: list[int] | tuple[()]) -> Loads:
        """From the first instance, by the planner."""
        others = [i for i in self.scaler.slots[0].tolist() if i != 0]
        plan = self.scaler.plan(seen, 0, slots, "any", going=others)
        assert plan is not None, "the first instance has the weights"
        targets = tuple(slot for _, slot in plan.edges)
        partners = tuple(helped[k] if k < len(helped) else -1 for k in range(len(targets)))
        return Loads(targets, tuple(source for source, _ in plan.edges), partners if helped else ())


def run(case: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Throughput in bins, instances that serve, and when all of them do."""
    scenario = scenario_of(case)
    policy = Grows(case["system"], case["instances"])
    table = episode(scenario, policy, case["seed"], case["arrivals_s"], 0.0).requests
    first = (table["arrival_s"] + table["ttft_s"]).dropna().to_numpy()
    bins = round(case["arrivals_s"] / case["bin_s"])
    count, _ = np.histogram(first, bins, (0.0, case["arrivals_s"]))
    looks, active = (np.array(x) for x in zip(*policy.active, strict=True))
    rows: list[dict[str, Any]] = [
        {
            "kind": "bin",
            "time_s": (k + 0.5) * case["bin_s"],
            "tokens_per_s": float(count[k] * case["prompt_tokens"] / case["bin_s"]),
            "active": int(active[np.searchsorted(looks, (k + 0.5) * case["bin_s"], "right") - 1]),
        }
        for k in range(bins)
    ]
    arrived = len(table) * case["prompt_tokens"] / case["arrivals_s"]
    near = min(case["instances"], GPUS_PER_HOST)
    rows.append(
        {
            "kind": "times",
            "near_s": when(looks, active, near),
            "done_s": when(looks, active, case["instances"]),
            "arriving_tokens_per_s": float(arrived),
        }
    )
    return rows


def when(looks: Any, active: Any, least: int) -> float | None:
    """First look with so many; None: never."""
    enough = np.flatnonzero(np.asarray(active) >= least)
    return float(looks[enough[0]]) if len(enough) else None


def excerpt(frame: DataFrame, parameters: OneToSixteen) -> DataFrame:
    """The times of all runs, and the means of what is drawn over time."""
    import pandas as pd

    bins = where(frame, kind="bin").groupby(["system", "kind", "time_s"])
    means = bins[["tokens_per_s", "active"]].mean().reset_index().assign(seed=frame["seed"].min())
    return pd.concat([frame[frame["kind"] != "bin"], means], ignore_index=True)


def plot(frame: DataFrame, parameters: OneToSixteen) -> Any:
    """Throughput, and instances that serve; the first seconds and all of it."""
    figure = new_figure(11.0, 6.0)
    panels = figure.subplots(2, 2)
    for column, end_s in ((0, 3.0), (1, parameters.arrivals_s)):
        for system, (shown, colour, line) in SYSTEMS.items():
            mine = where(frame, system=system, kind="bin")
            means = (
                mine.astype({"time_s": float}).groupby("time_s")[["tokens_per_s", "active"]].mean()
            )
            done = times(frame, system, "done_s").mean()
            label = f"{shown}: all serve after {done:.2f} s"
            top, bottom = panels[0][column], panels[1][column]
            top.plot(means.index, means["tokens_per_s"] / 1e3, color=colour, ls=line, label=label)
            bottom.step(
                means.index, means["active"], where="mid", color=colour, ls=line, label=shown
            )
            top.axvline(done, color=colour, lw=0.8, ls=":")
        load = times(frame, STOP, "arriving_tokens_per_s").mean() / 1e3
        panels[0][column].axhline(load, color="grey", lw=0.8, label="what arrives")
        for axes in panels[:, column]:
            dress(axes, xlim=(0, end_s), bottom=0)
        panels[1][column].set_xlabel("time from the order (s)")
        panels[0][column].set_ylabel("prefill throughput (1,000 tokens/s)")
        panels[1][column].set_ylabel("prefill instances that serve")
    panels[0][1].legend(fontsize=7, loc="lower right")
    panels[1][1].legend(fontsize=7, loc="lower right")
    return figure


PAPER_POINTS = (
    Published(
        "section 6.3", ((1.1, 0.0),), "level", panels=(0, 1, 2, 3), along="x",
        label="the paper: BlitzScale's 16 serve after 1.1 s",
    ),
    Published(
        "section 6.3", ((0.0, 20.0),), "level", panels=(0, 1),
        label="the paper: 20,000 tokens/s with the 7 neighbours",
    ),
)  # fmt: skip


def times(frame: DataFrame, system: str, column: str) -> Any:
    """A time of every run."""
    mine = where(frame, system=system, kind="times")
    return mine[column].dropna().astype(float)


def throughput(frame: DataFrame, system: str, from_s: float, to_s: float) -> Any:
    """Mean tokens/s of every run between two times, of whole bins."""
    mine = where(frame, system=system, kind="bin")
    mine = mine[(mine["time_s"] > from_s) & (mine["time_s"] < to_s)]
    return mine.astype({"tokens_per_s": float}).groupby("seed")["tokens_per_s"].mean()


def claims(frame: DataFrame, parameters: OneToSixteen) -> list[Claim]:
    """Section 6.3."""
    near = times(frame, STOP, "near_s").mean()
    done = times(frame, STOP, "done_s").mean()
    slow_done = times(frame, SLLM, "done_s").mean()
    live, still = (throughput(frame, system, near, done) for system in (LIVE, STOP))
    after = throughput(frame, SLLM, slow_done, min(slow_done + 1.0, parameters.arrivals_s))
    arriving = times(frame, SLLM, "arriving_tokens_per_s").mean()
    return [
        about(
            f"BlitzScale's {parameters.instances} instances serve after 1,100 ms",
            1.1,
            mean_interval(times(frame, LIVE, "done_s")),
            nothing=None,
            unit="s",
            how="seven over NVLink, then eight over the network, whose GPUs hand layers on over NVLink",
            note=f"{done:.2f} s if all are ordered at once, without live scaling",
        ),
        about(
            f"ServerlessLLM's {parameters.instances} instances serve after 3,100 ms",
            3.1,
            mean_interval(times(frame, SLLM, "done_s")),
            nothing=None,
            unit="s",
            how="seven from the machine's memory, eight from SSD",
            reason="13.5 GB from the 10 Gbps SSD of Table 1 take 10.8 s; 3.1 s would be one of some 35 Gbps",
        ),
        about(
            "With the seven neighbours BlitzScale reaches 20,000 tokens/s of prefill",
            20_000,
            mean_interval(still),
            nothing=None,
            unit="tokens/s",
            how="throughput from when the eight instances serve to when all do",
            reason="each of the eight prefills at about the speed of its profile; the released code scales "
            "by 13,000 tokens/s per instance, so 20,000 is less than two of them",
            note=f"they serve after {1e3 * near:.0f} ms",
        ),
        more(
            "Live scaling raises throughput even before the scaling is done",
            1.0,
            mean_interval((live / still).to_numpy()),
            unit="times that without it",
            paper="more",
            how="instances that still load execute layers for those that serve",
            setting="from when the first machine serves to when all do",
        ),
        more(
            "After the scale is done ServerlessLLM has a throughput boost",
            1.0,
            mean_interval((after / arriving).to_numpy()),
            unit="times the arrivals",
            paper="a boost",
            how="queued requests are processed beside new ones, in the second after all serve",
        ),
    ]
