"""What the environments share: episodes of a scenario side by side, stepped, shown, saved and restored."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import cached_property
from hashlib import sha256
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmscale_env.control.as_command import as_command
from llmscale_env.control.command import CommandError
from llmscale_env.control.forecast import ForecasterSpec, make_forecaster
from llmscale_env.control.metric_delay import DelayedCluster
from llmscale_env.control.policy import Policy
from llmscale_env.control.reward import PARTS, RewardModel, RewardParts, draw_requests
from llmscale_env.control.run import forecast_quantiles, load_steps, true_rates
from llmscale_env.control.simulation import ClusterSimulation, check_alike
from llmscale_env.control.snapshot import FORECAST_QUANTILES, Snapshot
from llmscale_env.control.view import ClusterView
from llmscale_env.envs.action_heads.orders import ActionOrders
from llmscale_env.envs.codec import Codec
from llmscale_env.envs.reference import Reference
from llmscale_env.envs.reset_options import Changes, changed
from llmscale_env.envs.shaping import LateBacklog, Shaping
from llmscale_env.scenarios.schema import Scenario
from llmscale_env.sim.lock import Lock
from llmscale_env.sim.picoseconds import seconds


class ServingCore:
    """`n` episodes of a scenario as an environment needs them; no Gymnasium in here but spaces.

    Args:
        scenario: what is simulated.
        n: episodes side by side.
        blocks, heads: see `Codec`.
        forecaster: name or settings of a forecaster (`control.forecast`), or a forecaster; None for none.
            There is none where decisions are made at arrivals.
        threads: threads that advance the episodes.
        reference: see `Codec`; every episode has its own copy.
        shaping: a term of the reward for requests that will be late (`envs.shaping`), None for none.
        engine: "fast" or "reference" (`sim.engine`).
    """

    def __init__(
        self,
        scenario: Scenario,
        n: int,
        blocks: Sequence[str],
        heads: Sequence[str],
        forecaster: ForecasterSpec | None = "ewma",
        threads: int = 1,
        reference: Policy | None = None,
        shaping: Shaping | None = None,
        engine: str = "fast",
    ) -> None:
        self.scenario = scenario
        self.n = n
        self.lock = Lock()
        self.codec = Codec(scenario, blocks, heads, reference)
        self.references = (
            [] if reference is None else [Reference(reference, scenario) for _ in range(n)]
        )
        self.sim = ClusterSimulation(scenario, n, threads=threads, engine=engine)
        self.behind = DelayedCluster(self.sim) if scenario.delay_steps else None
        self.seen = self.sim if self.behind is None else self.behind.sim
        self.weighted: RewardModel | None = None  # in place of the scenario's weights
        self.backlog = None if shaping is None else LateBacklog(scenario, shaping, n)
        self.rngs: list[np.random.Generator | None] = [None] * n
        # What plays the episodes under way again: how each began, and all actions since the oldest did.
        # None: it has not begun, or was restored, so its actions are not known from its start.
        self._starts: list[tuple[int | None, dict[str, Any], int, Changes] | None] = [None] * n
        self._taken: deque[NDArray[np.int64]] = deque()
        self._steps = 0
        self.last_action = np.zeros((n, len(self.codec.decoder.nvec)))
        self.returns = np.zeros(n)
        self.n_classes = len(scenario.classes)
        self._places = any(
            head.name in ("placement", "place_request") for head in self.codec.decoder.heads
        )
        self._ahead = 1
        self.forecaster_settings = forecaster
        self._forecaster: Any = None
        made = None if forecaster is None else make_forecaster(forecaster)
        # Where decisions are made at arrivals, episodes end their intervals at different times.
        if made is not None and scenario.decisions == "intervals":
            self._forecaster = made
            self._forecaster.reset(n * self.n_classes)
            ahead = load_steps(scenario) + scenario.delay_steps
            self._ahead = min(ahead, self._forecaster.max_steps)
        # Forecasts of the last decisions, as far back as what is shown; None: to be made.
        self._made: deque[Any] = deque([None], maxlen=scenario.delay_steps + 1)
        # Kept to save time: the last snapshot and masks, and what they are of.
        self._kept: tuple[Any, ...] = (None, -1, None, None)
        self._masked: tuple[Any, Any] = (None, None)

    def __getstate__(self) -> dict[str, Any]:
        # A snapshot looks at the arrays of its own simulation, not at a copy's.
        return {**self.__dict__, "_kept": (None, -1, None, None), "_masked": (None, None)}

    # ---- episodes ----

    def start(self, e: int, seed: int | None = None, changes: Changes | None = None) -> None:
        """A new episode for slot `e`, drawn from its generator.

        Args:
            seed: what a reference policy draws from; None: a number that follows from the generator's state.
            changes: fields of the workload with other values in this episode (`envs.reset_options`).
        """
        rng = self.rngs[e]
        assert rng is not None, "an episode needs a generator before it starts"
        changes = changes or {}
        scenario = changed(self.scenario, changes)
        self._starts[e] = (seed, dict(rng.bit_generator.state), self._steps, changes)
        self._drop_actions()
        if self.references:
            # A copy is asked: which requests come next must not depend on whether there is a reference.
            drawn = int(deepcopy(rng).integers(2**31)) if seed is None else seed
            self.references[e].reset(drawn)
        requests = draw_requests(scenario, rng)
        self.sim.start(e, requests)
        self.last_action[e] = 0.0
        self.returns[e] = 0.0
        if self._forecaster is not None:
            mine = self._series(e)
            self._forecaster.reset_series(mine)
            if getattr(self._forecaster, "is_clairvoyant", False):
                self._forecaster.set_future(true_rates(scenario, requests), mine)
        if self.behind is not None:
            self.behind.start(e, requests)
        if self.backlog is not None:
            self.backlog.start(e)
        self._forecast_anew(e)

    def _drop_actions(self) -> None:
        """Forget the actions that no episode under way has taken since it began."""
        oldest = min((begun[2] for begun in self._starts if begun is not None), default=self._steps)
        for _ in range(len(self._taken) - (self._steps - oldest)):
            self._taken.popleft()

    def _series(self, e: int) -> NDArray[np.int64]:
        return np.arange(e * self.n_classes, (e + 1) * self.n_classes)

    def step(
        self, action: NDArray[np.int64], held: NDArray[np.bool_] | None = None
    ) -> tuple[RewardParts, NDArray[np.bool_], NDArray[np.int64]]:
        """Carry out an action (n, parts), which has been checked, and run to the next decision.

        Args:
            action: of every episode.
            held: (n,) episodes that are over and stand still, so that `start` comes next; what is said of
                them means nothing. None: there are none.

        Returns:
            Costs (n,), whether the horizon is reached (n,), orders clipped (n,).

        Raises:
            CommandError: an impossible order, where the scenario says so; others have been carried out.
        """
        orders = self.codec.decoder.orders(action, self.snapshot())
        if self.references or self.behind is not None:
            clipped = self._command(orders, held)
        else:
            clipped = self._order(orders, held)
        self.last_action = self.codec.decoder.fraction(action)
        self._taken.append(action)
        self._steps += 1
        done = self.sim.advance_others(held)
        if self.behind is not None:
            self.behind.follow(self._commands)
        if self._forecaster is not None:  # every decision ends an interval
            self._forecaster.update(self.sim.by_class["arrived"].reshape(-1).astype(np.float64))
            self._made.append(None if self.behind is None else self._make_forecast())
        models = (self.sim.rewards,) if self.weighted is None else (self.sim.rewards, self.weighted)
        own, *weighted = self.sim.costs_by(done, *models)
        self.returns += own.reward
        if self.backlog is not None:
            now = self._snapshot_of(self.sim)
            self.shaped = self.backlog.step(now, done)
        return (weighted or [own])[0], done, clipped

    def _order(self, orders: ActionOrders, held: NDArray[np.bool_] | None) -> NDArray[np.int64]:
        """Carry out orders of all episodes at once; (n,) orders clipped."""
        clipped = self.sim.order(orders)
        if held is not None:
            clipped[held] = 0
        if self.scenario.impossible_commands == "error" and clipped.any():
            e = int(np.argmax(clipped))
            raise CommandError(
                f"action[{e}]: {clipped[e]} instances could not be started: max_gpus = "
                f"{self.scenario.fleet.max_gpus}, or a source of weights has gone"
            )
        return clipped + self._impossible(orders, held)

    def _impossible(
        self, orders: ActionOrders, held: NDArray[np.bool_] | None
    ) -> NDArray[np.int64]:
        """(n,) choices that were not possible, which count as clipped."""
        impossible = orders.impossible if held is None else np.where(held, 0, orders.impossible)
        self._refuse(impossible)
        self.sim.clipped += impossible
        return impossible

    def _command(self, orders: ActionOrders, held: NDArray[np.bool_] | None) -> NDArray[np.int64]:
        """Carry out the same as commands one by one, as `run_episode` does; (n,) orders clipped.

        Commands are checked, so orders may be about what is no longer there, and they may be a policy's.
        """
        self._commands = [as_command(orders, e, self.scenario) for e in range(self.n)]
        for e, reference in enumerate(self.references):
            self._commands[e] = reference.command(orders.percents_of(e), self._commands[e])
        clipped = self._impossible(orders, held)
        due = {e: c for e, c in enumerate(self._commands) if held is None or not held[e]}
        return clipped + self.sim.command(due)

    def _refuse(self, impossible: NDArray[np.int64]) -> None:
        """Choices that count for nothing are an error if the scenario says so."""
        if self.scenario.impossible_commands == "error" and impossible.any():
            e = int(np.argmax(impossible))
            raise CommandError(
                f"action[{e}]: {impossible[e]} choices that the action mask rules out"
            )

    # ---- seeing ----

    def _make_forecast(self) -> tuple[Any, Any, Any]:
        """(rate, error, quantiles if they will be needed) of all episodes now."""
        shape = (self.n, self.n_classes)
        rate = self._forecaster.predict(self._ahead).reshape(shape)
        error = self._forecaster.recent_error().reshape(shape)
        quantiles = None if self.behind is None else self._quantiles_now()
        return rate / self.scenario.control_interval_s, error, quantiles

    def _quantiles(self) -> NDArray[np.float64]:
        """(n, C, 2) quantiles of the forecast that is shown."""
        quantiles = self._forecast()[2]
        return self._quantiles_now() if quantiles is None else quantiles

    def _quantiles_now(self) -> NDArray[np.float64]:
        found = forecast_quantiles(self._forecaster, self._ahead)
        return found.reshape(self.n, self.n_classes, -1) / self.scenario.control_interval_s

    def _forecast_anew(self, e: int) -> None:
        """Episode `e` is another one: so are the forecasts of it that are still to be shown."""
        if self._forecaster is None:
            return
        if self.behind is None or self._made[0] is None:
            self._made.clear()
            self._made.append(None if self.behind is None else self._make_forecast())
            return
        fresh = self._make_forecast()
        for made in self._made:
            for kept, new in zip(made, fresh, strict=True):
                kept[e] = new[e]

    def _forecast(self) -> tuple[Any, Any, Any]:
        if self._made[0] is None:
            self._made[0] = self._make_forecast()
        return self._made[0]

    def _snapshot_of(self, sim: ClusterSimulation) -> Snapshot:
        """The same one as long as nothing has happened."""
        forecast = None if self._forecaster is None else self._forecast()
        of, looks, shown, now = self._kept
        if of is sim and looks == sim.looks and shown is forecast:
            return now
        if forecast is None:
            shape = (self.n, self.n_classes)
            now = sim.snapshot(np.zeros(shape), np.zeros(shape))
        else:
            now = sim.snapshot(forecast[0], forecast[1], self._quantiles)
        self._kept = (sim, sim.looks, forecast, now)
        return now

    def snapshot(self) -> Snapshot:
        """All episodes as they stand, or stood (`Scenario.metric_delay_s`)."""
        now = self._snapshot_of(self.seen)
        if not self.references:
            return now
        for e, reference in enumerate(self.references):
            if not reference.has_looked and self.sim.interval[e] < self.scenario.n_steps:
                reference.look(self.view(e))
        return replace(now, wanted=np.stack([reference.wanted for reference in self.references]))

    def view(self, e: int) -> ClusterView:
        """Episode `e` as a handwritten policy sees it."""
        if self._forecaster is None:
            return self.seen.view(e)
        rate, error, _ = self._forecast()
        return self.seen.view(e, rate[e], error[e], lambda: self._quantiles()[e])

    def observe(self) -> NDArray[np.float32]:
        """(n, k) observations."""
        return self.codec.encoder.encode(self.snapshot(), self.last_action)

    def masks(self) -> NDArray[np.bool_]:
        """(n, sum of choices) possible choices."""
        now = self.snapshot()
        if self._masked[0] is not now:
            self._masked = (now, self.codec.decoder.masks(now))
        masks: NDArray[np.bool_] = self._masked[1]
        return masks.copy()

    def metrics(self) -> dict[str, NDArray[np.float64]]:
        """Physical quantities of each episode so far, (n,) each."""
        engine = self.sim.engine
        tally, pools, queues = engine.class_seen, engine.pool_seen, engine.queue_seen
        late = tally["rejected"] + tally["ttft_late"] + tally["itl_late"]
        known = tally["on_time"] + late
        of_classes = {
            "slo_attainment": _ratio(tally["on_time"], known),
            "violations": late.astype(float),
            "arrived": tally["arrived"].astype(float),
        }
        out: dict[str, NDArray[np.float64]] = {}
        for c, slo_class in enumerate(self.scenario.classes):
            for name, values in of_classes.items():
                out[f"{slo_class.name}/{name}"] = values[:, c]
        for group, members in self.scenario.named_groups.items():
            rows = list(members)
            of_group = tally["on_time"][:, rows].sum(axis=1), known[:, rows].sum(axis=1)
            out[f"{group}/slo_attainment"] = _ratio(*of_group)
            out[f"{group}/violations"] = late[:, rows].sum(axis=1).astype(float)
            out[f"{group}/arrived"] = tally["arrived"][:, rows].sum(axis=1).astype(float)
        out["joint/slo_attainment"] = _ratio(tally["on_time"].sum(axis=1), known.sum(axis=1))
        out["gpu_hours"] = seconds(pools, "gpu").sum(axis=1) / 3600.0
        out["loads"] = pools["started"].sum(axis=1).astype(float)
        out["preemptions"] = pools["preemptions"].sum(axis=1).astype(float)
        out["evictions"] = pools["evictions"].sum(axis=1).astype(float)
        active = pools["active"]
        gauges = {
            "active": active.astype(float),
            "loading": (pools["acquiring"] + pools["loading"]).astype(float),
            "running": pools["running"].astype(float),
            "waiting": pools["waiting"].astype(float),
            "batch_limit": pools["limit_sum"] / np.maximum(active, 1),
        }
        for p, pool in enumerate(self.scenario.fleet.pools):
            for name, values in gauges.items():
                out[f"{pool.name}/{name}"] = values[:, p]
        for q, queue in enumerate(self.scenario.fleet.queues):
            out[f"queue/{queue.name}"] = queues["requests"][:, q].astype(float)
        if self._places:
            out["queue/gateway"] = self.sim.gateways(False).waiting.sum(axis=1).astype(float)
        groups = queues["requests"][:, len(self.scenario.fleet.queues) :]
        if self.scenario.fleet.group_queues:
            out["queue/groups"] = groups.sum(axis=1).astype(float)
        if any(pool.swaps_to for pool in self.scenario.fleet.pools):
            out["swaps"] = engine.n_swaps.astype(float)
        out["reward"] = self.returns.copy()
        return out

    def summary(self) -> dict[str, NDArray[np.float64]]:
        """`metrics` at the end of an episode, attainment as the share of all arrivals.

        While an episode runs, the fate of some arrivals is open and they are left out; at its end
        whoever is not on time counts, as in `EpisodeResult`. With prices what is open stays left out.
        """
        out = self.metrics()
        if self.scenario.reward.prices is not None:
            return out
        tally = self.sim.engine.class_seen
        for c, slo_class in enumerate(self.scenario.classes):
            share = _ratio(tally["on_time"][:, c], tally["arrived"][:, c])
            out[f"{slo_class.name}/slo_attainment"] = share
        for group, members in self.scenario.named_groups.items():
            rows = list(members)
            of_group = tally["on_time"][:, rows].sum(axis=1), tally["arrived"][:, rows].sum(axis=1)
            out[f"{group}/slo_attainment"] = _ratio(*of_group)
        on_time, arrived = tally["on_time"].sum(axis=1), tally["arrived"].sum(axis=1)
        out["joint/slo_attainment"] = _ratio(on_time, arrived)
        return out

    def violations(self) -> tuple[NDArray[np.float64], dict[str, NDArray[np.float64]]]:
        """(n,) SLO violations of the last interval, of all classes and by class, for constrained RL."""
        late = self.sim.violations().astype(np.float64)
        return late.sum(axis=1), {c.name: late[:, k] for k, c in enumerate(self.scenario.classes)}

    # ---- weights ----

    def set_weights(self, **weights: Any) -> None:
        """Other weights of the reward's parts from now on: see `RewardModel.set_weights`.

        What `metrics` says of the reward stays by the scenario's own.
        """
        model = self.weighted or RewardModel(self.scenario)
        model.set_weights(**weights)
        self.weighted = model

    # ---- forks ----

    @cached_property
    def fingerprint(self) -> str:
        """Of all that a saved state must share with the environment that goes on from it."""
        parts = (
            self.scenario.model_dump_json(),
            self.codec.decoder.nvec.tolist(),
            type(self._forecaster).__qualname__,
            len(self.references) > 0,
            self.backlog is not None,
        )
        return sha256(repr(parts).encode()).hexdigest()

    def save(self, e: int) -> dict[str, Any]:
        """Everything about episode `e`, its generator included; can be pickled."""
        rng = self.rngs[e]
        saved = {
            "scenario": self.fingerprint,
            "sim": self.sim.save(e),
            "last_action": self.last_action[e].copy(),
            "returns": float(self.returns[e]),
            "rng": None if rng is None else rng.bit_generator.state,
        }
        if self._forecaster is not None:
            saved["forecaster"] = self._forecaster.save_series(self._series(e))
        if self.references:
            saved["reference"] = self.references[e].save()
        if self.backlog is not None:
            saved["backlog"] = float(self.backlog.now[e])
        if self.behind is not None:
            saved["behind"] = self.behind.save(e)
            saved["made"] = [made and [kept[e].copy() for kept in made] for made in self._made]
        return saved

    def restore(self, e: int, saved: dict[str, Any]) -> None:
        """Put episode `e` where it was at `save`. Until the next `start` there is no `so_far` of it.

        Kinds and shapes of what is saved are checked, not its values: a changed number goes unnoticed.

        Raises:
            ValueError: `saved` is of another scenario, or not whole; nothing has changed then.
        """
        needed = {"scenario", "sim", "last_action", "returns", "rng"} | {
            name
            for name, there in (
                ("forecaster", self._forecaster is not None),
                ("reference", len(self.references) > 0),
                ("backlog", self.backlog is not None),
                ("behind", self.behind is not None),
                ("made", self.behind is not None),
            )
            if there
        }
        missing = sorted(needed - saved.keys()) if isinstance(saved, dict) else sorted(needed)
        if missing:
            raise ValueError(f"saved: no state of an environment, {missing} missing")
        if saved["scenario"] != self.fingerprint:
            raise ValueError(
                "saved: a state of another scenario, other actions or another forecaster"
            )
        self._check_saved(e, saved)
        before = {} if self.behind is None else self.sim.save(e)
        self.sim.restore(e, saved["sim"])
        if self.behind is not None:
            try:
                self.behind.restore(e, saved["behind"])
            except ValueError:
                self.sim.restore(e, before)
                raise
            self._restore_forecasts(e, saved["made"])
        self._starts[e] = None
        self._drop_actions()
        self.last_action[e] = saved["last_action"]
        self.returns[e] = saved["returns"]
        rng = self.rngs[e]
        if saved["rng"] is not None:
            if rng is None:
                rng = self.rngs[e] = np.random.default_rng()
            rng.bit_generator.state = saved["rng"]
        if self._forecaster is not None:
            self._forecaster.restore_series(self._series(e), saved["forecaster"])
            if self.behind is None:
                self._made[0] = None
        if self.references:
            self.references[e].restore(saved["reference"])
        if self.backlog is not None:
            self.backlog.now[e] = saved["backlog"]

    def _check_saved(self, e: int, saved: dict[str, Any]) -> None:
        """Refuse values of another kind than `save` gives, before anything changes."""
        mine: dict[str, Any] = {"last_action": self.last_action[e], "returns": 0.0}
        if self._forecaster is not None:
            mine["forecaster"] = self._forecaster.save_series(self._series(e))
        if self.backlog is not None:
            mine["backlog"] = 0.0
        if self.references:
            mine["reference"] = self.references[e].state
        if self.behind is not None:
            made = saved["made"]
            mine["made"] = [None]  # where there is no forecaster, and before the first episode
            if self._forecaster is not None and isinstance(made, list) and made != [None]:
                row = [kept[e] for kept in self._blank_forecast()]
                mine["made"] = [row] * min(max(len(made), 1), self.scenario.delay_steps + 1)
        rng = np.random.default_rng(0)
        if saved["rng"] is not None:
            mine["rng"] = rng.bit_generator.state
        check_alike("core", {name: saved[name] for name in mine}, mine)
        if saved["rng"] is not None:
            _set_generator(rng, saved["rng"], "saved")

    def _restore_forecasts(self, e: int, saved: list[Any]) -> None:
        """Those of episode `e` that are still to be shown; a longer history is that of the other episodes."""
        if self._forecaster is None:
            return
        if self.n == 1 or self._made[0] is None:
            self._made.clear()
        if saved == [None]:  # from before its first episode
            self._made.extend([None] * (not self._made))
            return
        while len(self._made) < len(saved):
            self._made.append(self._blank_forecast())
        # The last ones belong together; before the first one saved it is as at that.
        rows = [saved[0]] * (len(self._made) - len(saved)) + list(saved)
        for made, row in zip(self._made, rows, strict=True):
            for kept, value in zip(made, row, strict=True):
                kept[e] = value

    def _blank_forecast(self) -> tuple[Any, Any, Any]:
        shape = (self.n, self.n_classes)
        return np.zeros(shape), np.zeros(shape), np.zeros((*shape, len(FORECAST_QUANTILES)))

    def so_far(self, e: int) -> dict[str, Any]:
        """How episode `e` began, and its (k, parts) actions since: numbers alone, for `replay`.

        Raises:
            ValueError: the episode has not begun, or was restored and cannot be played again from its start.
        """
        begun = self._starts[e]
        if begun is None:
            raise ValueError(
                f"episode {e}: cannot be played again, since it was restored from a saved state; "
                "start it anew first"
            )
        seed, generator, first, changes = begun
        mine = list(self._taken)[len(self._taken) - (self._steps - first) :]
        actions = np.array([taken[e] for taken in mine], np.int64)
        return {
            "seed": seed,
            "generator": generator,
            "changes": dict(changes),
            "actions": actions.reshape(-1, len(self.codec.decoder.nvec)),
        }

    def replay(self, episodes: Sequence[Mapping[str, Any]]) -> None:
        """Bring every episode to where it was at `so_far`, by playing it again.

        Raises:
            ValueError: another number of episodes, or what is no episode of this environment.
        """
        if len(episodes) != self.n:
            raise ValueError(f"episodes: {len(episodes)} of them, must be {self.n}")
        nvec = self.codec.decoder.nvec
        for e, episode in enumerate(episodes):
            if not isinstance(episode, Mapping):
                raise ValueError(f"episodes[{e}] = {episode!r}: must be from `so_far`")
            seed = episode.get("seed")
            if not (seed is None or isinstance(seed, (int, np.integer))):
                raise ValueError(f"episodes[{e}]: seed = {seed!r}: must be an integer or None")
            taken = np.asarray(episode.get("actions"))
            fits = taken.ndim == 2 and taken.shape[1] == len(nvec) and taken.dtype.kind in "iu"
            if not fits or (taken < 0).any() or (taken >= nvec).any():
                raise ValueError(
                    f"episodes[{e}]: has no actions (k, {len(nvec)}) of this environment"
                )
        lengths = [len(episode["actions"]) for episode in episodes]

        def begin(e: int) -> None:
            self.rngs[e] = rng = np.random.default_rng()
            _set_generator(rng, episodes[e].get("generator"), f"episodes[{e}]")
            self.start(e, episodes[e].get("seed"), dict(episodes[e].get("changes") or {}))

        for e in range(self.n):
            begin(e)
        # Shorter ones wait: they play something, and begin when as many decisions are left as they have.
        for left in range(max(lengths), -1, -1):
            for e in [e for e, length in enumerate(lengths) if length == left < max(lengths)]:
                begin(e)
            if left == 0:
                return
            parts = np.split(self.masks(), np.cumsum(nvec)[:-1], axis=1)
            actions = np.stack([possible.argmax(axis=1) for possible in parts], axis=1)
            for e in [e for e, length in enumerate(lengths) if left <= length]:
                actions[e] = episodes[e]["actions"][lengths[e] - left]
            _, done, _ = self.step(actions)
            for e in np.flatnonzero(done).tolist():
                begin(e)

    def close(self) -> None:
        self.sim.close()
        if self.behind is not None:
            self.behind.close()


def parts_dict(costs: RewardParts) -> dict[str, NDArray[np.float64]]:
    """The reward's parts (costs, (n,) each) by name."""
    return {name: getattr(costs, name) for name in PARTS}


def _set_generator(rng: np.random.Generator, state: Any, where: str) -> None:
    """Let it go on from a state.

    Raises:
        ValueError: it is none; `rng` is as before.
    """
    try:
        rng.bit_generator.state = state
    except (KeyError, OverflowError, TypeError, ValueError):
        raise ValueError(f"{where}: its generator has no state of PCG64") from None


def _ratio(part: NDArray[np.int64], whole: NDArray[np.int64]) -> NDArray[np.float64]:
    """1 where nothing is known yet: no target has been missed."""
    return np.where(whole > 0, part / np.maximum(whole, 1), 1.0)
