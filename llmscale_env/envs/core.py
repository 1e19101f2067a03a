"""What the environments share: episodes of a scenario, seen through blocks and steered through heads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from llmscale_env.control.command import Command, CommandError
from llmscale_env.control.forecast import make_forecaster
from llmscale_env.control.reward import PARTS, RewardParts, draw_requests
from llmscale_env.control.run import load_steps, true_rates
from llmscale_env.control.simulation import ClusterSimulation
from llmscale_env.control.view import ClusterView, Snapshot
from llmscale_env.envs.actions import ActionDecoder
from llmscale_env.envs.observations import ObservationEncoder
from llmscale_env.scenarios.schema import Scenario
from llmscale_env.sim.picoseconds import seconds


class Codec:
    """Between a cluster and a network: observation of a view, command of an action.

    It remembers the last action (the `last_action` block shows it), so one codec follows one episode.

    Args:
        scenario: what is observed and commanded.
        blocks: names of observation blocks.
        heads: names of action heads.
    """

    def __init__(self, scenario: Scenario, blocks: Sequence[str], heads: Sequence[str]) -> None:
        self.scenario = scenario
        self.decoder = ActionDecoder(scenario, heads)
        self.encoder = ObservationEncoder(scenario, blocks, self.decoder.parts)
        self.observation_space = spaces.Box(self.encoder.low, self.encoder.high, dtype=np.float32)
        self.action_space = spaces.MultiDiscrete(self.decoder.nvec)
        self.reset()

    def reset(self) -> None:
        """A new episode begins."""
        self._last = np.zeros((1, len(self.decoder.nvec)))

    def encode(self, view: ClusterView) -> NDArray[np.float32]:
        """(k,) observation of a view."""
        return self.encoder.encode(view.snapshot, self._last)[0]

    def decode(self, action: Any, view: ClusterView) -> Command:
        """The command that an action (parts,) means now.

        Raises:
            ValueError: a wrong shape, a value that is no whole number or out of its range.
        """
        checked = self.decoder.check(action, 1)
        self._last = self.decoder.fraction(checked)
        return self.decoder.orders(checked, view.snapshot).command(0, self.scenario)

    def mask(self, view: ClusterView) -> NDArray[np.bool_]:
        """(sum of choices,) possible choices, parts one after the other."""
        return self.decoder.masks(view.snapshot)[0]


class ServingCore:
    """`n` episodes of a scenario as an environment needs them; no Gymnasium in here but spaces.

    Args:
        scenario: what is simulated.
        n: episodes side by side.
        blocks, heads: see `Codec`.
        forecaster: name or settings of a forecaster (`control.forecast`), None for none; there is none
            where decisions are made at arrivals.
        threads: threads that advance the episodes.
    """

    def __init__(
        self,
        scenario: Scenario,
        n: int,
        blocks: Sequence[str],
        heads: Sequence[str],
        forecaster: str | dict[str, Any] | None = "ewma",
        threads: int = 1,
    ) -> None:
        self.scenario = scenario
        self.n = n
        self.codec = Codec(scenario, blocks, heads)
        self.sim = ClusterSimulation(scenario, n, threads=threads)
        self.rngs: list[np.random.Generator | None] = [None] * n
        self.last_action = np.zeros((n, len(self.codec.decoder.nvec)))
        self.returns = np.zeros(n)
        self.n_classes = len(scenario.classes)
        self._places = any(
            head.name in ("placement", "place_request") for head in self.codec.decoder.heads
        )
        self._ahead = 1
        self.forecaster_settings = forecaster
        self._forecaster: Any = None
        # Where decisions are made at arrivals, episodes end their intervals at different times.
        if forecaster is not None and scenario.decisions == "intervals":
            self._forecaster = make_forecaster(forecaster)
            self._forecaster.reset(n * self.n_classes)
            self._ahead = min(load_steps(scenario), self._forecaster.max_steps)

    # ---- episodes ----

    def start(self, e: int) -> None:
        """A new episode for slot `e`, drawn from its generator."""
        rng = self.rngs[e]
        assert rng is not None, "an episode needs a generator before it starts"
        requests = draw_requests(self.scenario, rng)
        self.sim.start(e, requests)
        self.last_action[e] = 0.0
        self.returns[e] = 0.0
        if self._forecaster is not None:
            mine = self._series(e)
            self._forecaster.reset_series(mine)
            if getattr(self._forecaster, "is_clairvoyant", False):
                self._forecaster.set_future(true_rates(self.scenario, requests), mine)

    def _series(self, e: int) -> NDArray[np.int64]:
        return np.arange(e * self.n_classes, (e + 1) * self.n_classes)

    def step(self, action: Any) -> tuple[RewardParts, NDArray[np.bool_], NDArray[np.int64]]:
        """Carry out an action (n, parts) and run to the next decision.

        Returns:
            Costs (n,), whether the horizon is reached (n,), orders clipped (n,).

        Raises:
            ValueError: a wrong shape, a value that is no whole number or out of its range.
        """
        checked = self.codec.decoder.check(action, self.n)
        orders = self.codec.decoder.orders(checked, self.snapshot())
        if orders.scaling is not None:
            self.sim.order_mutations(orders.scaling)
        clipped = self.sim.engine.order(
            orders.targets, orders.sources, orders.limits, orders.shares
        )
        if self.scenario.impossible_commands == "error" and clipped.any():
            e = int(np.argmax(clipped))
            raise CommandError(
                f"action[{e}]: {clipped[e]} instances more than max_gpus = "
                f"{self.scenario.fleet.max_gpus} allows"
            )
        if orders.scaling is not None:
            self.sim.order_loads(orders.scaling)
        for more in (orders.queues, orders.places, orders.scaling, orders.endpoints):
            if more is not None:
                self._refuse(more.impossible)
                clipped += more.impossible
        if orders.queues is not None:
            self.sim.order_queues(orders.queues)
        if orders.places is not None:
            self.sim.order_places(orders.places)
        if orders.endpoints is not None:
            self.sim.order_endpoints(orders.endpoints)
        self.sim.clipped += clipped
        self.last_action = self.codec.decoder.fraction(checked)
        done = self.sim.advance()
        if self._forecaster is not None:  # every decision ends an interval
            self._forecaster.update(self.sim.by_class["arrived"].reshape(-1).astype(np.float64))
        costs = self.sim.costs(done)
        self.returns += costs.reward
        return costs, done, clipped

    def _refuse(self, impossible: NDArray[np.int64]) -> None:
        """Choices that count for nothing are an error if the scenario says so."""
        if self.scenario.impossible_commands == "error" and impossible.any():
            e = int(np.argmax(impossible))
            raise CommandError(
                f"action[{e}]: {impossible[e]} choices that the action mask rules out"
            )

    # ---- seeing ----

    def snapshot(self) -> Snapshot:
        """All episodes as they stand."""
        shape = (self.n, self.n_classes)
        if self._forecaster is None:
            return self.sim.snapshot(np.zeros(shape), np.zeros(shape))
        rate = self._forecaster.predict(self._ahead).reshape(shape)
        error = self._forecaster.recent_error().reshape(shape)
        return self.sim.snapshot(rate / self.scenario.control_interval_s, error)

    def observe(self) -> NDArray[np.float32]:
        """(n, k) observations."""
        return self.codec.encoder.encode(self.snapshot(), self.last_action)

    def masks(self) -> NDArray[np.bool_]:
        """(n, sum of choices) possible choices."""
        return self.codec.decoder.masks(self.snapshot())

    def metrics(self) -> dict[str, NDArray[np.float64]]:
        """Physical quantities of each episode so far, (n,) each."""
        states = self.sim.engine.states
        tally, pools, queues = states.tally, states.pool_seen, states.queue_seen
        late = tally["rejected"] + tally["ttft_late"] + tally["itl_late"]
        known = tally["on_time"] + late
        out: dict[str, NDArray[np.float64]] = {}
        for c, slo_class in enumerate(self.scenario.classes):
            out[f"{slo_class.name}/slo_attainment"] = _ratio(tally["on_time"][:, c], known[:, c])
            out[f"{slo_class.name}/violations"] = late[:, c].astype(float)
            out[f"{slo_class.name}/arrived"] = tally["arrived"][:, c].astype(float)
        out["joint/slo_attainment"] = _ratio(tally["on_time"].sum(axis=1), known.sum(axis=1))
        out["gpu_hours"] = seconds(pools, "gpu").sum(axis=1) / 3600.0
        out["loads"] = pools["started"].sum(axis=1).astype(float)
        out["preemptions"] = pools["preemptions"].sum(axis=1).astype(float)
        out["evictions"] = pools["evictions"].sum(axis=1).astype(float)
        for p, pool in enumerate(self.scenario.fleet.pools):
            out[f"{pool.name}/active"] = pools["active"][:, p].astype(float)
            out[f"{pool.name}/loading"] = (pools["acquiring"] + pools["loading"])[:, p].astype(
                float
            )
            out[f"{pool.name}/running"] = pools["running"][:, p].astype(float)
            out[f"{pool.name}/waiting"] = pools["waiting"][:, p].astype(float)
            out[f"{pool.name}/batch_limit"] = pools["limit_sum"][:, p] / np.maximum(
                pools["active"][:, p], 1
            )
        for q, queue in enumerate(self.scenario.fleet.queues):
            out[f"queue/{queue.name}"] = queues["requests"][:, q].astype(float)
        if self._places:
            out["queue/gateway"] = self.sim.gateways(False).waiting.sum(axis=1).astype(float)
        groups = queues["requests"][:, len(self.scenario.fleet.queues) :]
        if self.scenario.fleet.group_queues:
            out["queue/groups"] = groups.sum(axis=1).astype(float)
        if any(pool.swaps_to for pool in self.scenario.fleet.pools):
            out["swaps"] = states.inst["swaps"].sum(axis=1).astype(float)
        out["reward"] = self.returns.copy()
        return out

    def summary(self) -> dict[str, NDArray[np.float64]]:
        """`metrics` at the end of an episode, attainment as the share of all arrivals.

        While an episode runs, the fate of some arrivals is open and they are left out; at its end
        whoever is not on time counts, as in `EpisodeResult`.
        """
        out = self.metrics()
        tally = self.sim.engine.states.tally
        for c, slo_class in enumerate(self.scenario.classes):
            share = _ratio(tally["on_time"][:, c], tally["arrived"][:, c])
            out[f"{slo_class.name}/slo_attainment"] = share
        on_time, arrived = tally["on_time"].sum(axis=1), tally["arrived"].sum(axis=1)
        out["joint/slo_attainment"] = _ratio(on_time, arrived)
        return out

    def violations(self) -> NDArray[np.float64]:
        """(n,) SLO violations of the last interval, all classes: the cost of constrained RL."""
        return self.sim.violations().sum(axis=1).astype(np.float64)

    # ---- forks ----

    def save(self, e: int) -> dict[str, Any]:
        """Everything about episode `e`, its generator included; can be pickled."""
        rng = self.rngs[e]
        saved = {
            "sim": self.sim.save(e),
            "last_action": self.last_action[e].copy(),
            "returns": float(self.returns[e]),
            "rng": None if rng is None else rng.bit_generator.state,
        }
        if self._forecaster is not None:
            saved["forecaster"] = self._forecaster.save_series(self._series(e))
        return saved

    def restore(self, e: int, saved: dict[str, Any]) -> None:
        """Put episode `e` where it was at `save`.

        Raises:
            ValueError: `saved` is of another scenario.
        """
        self.sim.restore(e, saved["sim"])
        self.last_action[e] = saved["last_action"]
        self.returns[e] = saved["returns"]
        rng = self.rngs[e]
        if saved["rng"] is not None:
            if rng is None:
                rng = self.rngs[e] = np.random.default_rng()
            rng.bit_generator.state = saved["rng"]
        if self._forecaster is not None:
            self._forecaster.restore_series(self._series(e), saved["forecaster"])

    def close(self) -> None:
        self.sim.close()


def parts_dict(costs: RewardParts) -> dict[str, NDArray[np.float64]]:
    """The reward's parts (costs, (n,) each) by name."""
    return {name: getattr(costs, name) for name in PARTS}


def _ratio(part: NDArray[np.int64], whole: NDArray[np.int64]) -> NDArray[np.float64]:
    """1 where nothing is known yet: no target has been missed."""
    return np.where(whole > 0, part / np.maximum(whole, 1), 1.0)
