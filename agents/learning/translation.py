"""Orders of a handwritten policy in the words of an action space: part by part the nearest choice.

What a choice does is read from what the action's heads make of it, not from its name, so absolute
counts, changes and forms that build on other counts are all translated by the same rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agents.exploration.prior import as_is_choices
from llmscale_env.control.command import Command
from llmscale_env.control.view import ClusterView
from llmscale_env.scenarios import Scenario
from llmscale_env.sim.compile import SOURCES
from llmscale_env.sim.orders import AS_IS

KNOWN = ("targets", "batch_limits", "overflow_share", "load_source")
"""Fields of a command that parts of an action can mean."""


class TranslationError(ValueError):
    """A policy and an action space that have nothing in common; the message says so in one line."""


@dataclass(frozen=True)
class Translated:
    """A command as an action.

    Attributes:
        action: (parts,) the nearest possible choices.
        exact: (parts,) whether a choice does exactly what was wanted; always true for parts that the
            translation leaves as they are (`Translator.untranslated`).
        left_out: names of fields of the command that no part means.
    """

    action: NDArray[np.int64]
    exact: NDArray[np.bool_]
    left_out: tuple[str, ...]


@dataclass
class _Wanted:
    """What a command leads to: arrays as in `sim.orders.PoolOrders`, without "as it is"."""

    targets: NDArray[np.int64]
    limits: NDArray[np.int64]
    shares: NDArray[np.float64]
    sources: NDArray[np.int64]


class Translator:
    """Follows one episode, since what a command leaves out stays as it was ordered before.

    Args:
        codec: of the environment (`agents.configuration.environments.codec_of`).
        scenario: what is commanded.

    Raises:
        TranslationError: no part of the action is an instance count, batch limit, share or source.

    Attributes:
        untranslated: parts that nothing is known of; they keep the choice that leaves things as they are.
    """

    def __init__(self, codec: Any, scenario: Scenario) -> None:
        self.scenario = scenario
        self._decoder = codec.decoder
        self._pools = [pool.name for pool in scenario.fleet.pools]
        self._classes = [c.name for c in scenario.classes]
        parts = self._decoder.parts
        self._places = [self._place(part) for part in parts]
        self.untranslated = tuple(
            part for part, place in zip(parts, self._places, strict=True) if place is None
        )
        if len(self.untranslated) == len(parts):
            raise TranslationError(
                f"parts {list(parts)} of the action: none is an instance count, a batch limit, an "
                "overflow share or a source, so a policy's commands cannot be translated"
            )
        found = as_is_choices(parts, self._decoder.choices, scenario)
        self._as_is = np.array([0 if choice is None else choice for choice in found])
        self.reset()

    def reset(self) -> None:
        """A new episode: the scenario's own settings hold."""
        pools, llm = self.scenario.fleet.pools, self.scenario.fleet.llms[0]
        self._limits = np.array([pool.batch_limit for pool in pools])
        self._controllers: list[str] = [pool.controller for pool in pools]
        self._shares = np.array(
            [self.scenario.route_of(llm, name).overflow_share for name in self._classes]
        )

    def translate(self, command: Command, view: ClusterView) -> Translated:
        """The action that comes nearest to `command` now.

        Choices that the action mask rules out are not taken. Of two that are equally near, the one farther
        from what there is now is taken: a policy that asks for one more or one fewer gets somewhere.
        """
        now_is = self._wanted(Command(), view)
        left_out = self._remember(command)
        wanted = self._wanted(command, view)
        now = view.snapshot
        nvec = self._decoder.nvec
        masks = np.split(self._decoder.masks(now)[0], np.cumsum(nvec)[:-1])
        effects = [
            self._effect(np.minimum(choice, nvec - 1), now, view)
            for choice in range(int(nvec.max()))
        ]
        action, exact = self._as_is.copy(), np.ones(len(nvec), bool)
        for part, place in enumerate(self._places):
            if place is None:
                continue
            distances = np.array(
                [_distance(effect, wanted, place) for effect in effects[: nvec[part]]]
            )
            possible = masks[part] if masks[part].any() else np.ones(nvec[part], bool)
            distances[~possible] = np.inf
            nearest = np.flatnonzero(distances == distances.min())
            moved = [_distance(effects[choice], now_is, place) for choice in nearest]
            action[part] = nearest[int(np.argmax(moved))]
            exact[part] = distances.min() == 0
        return Translated(action, exact, left_out)

    # ---- what is wanted ----

    def _remember(self, command: Command) -> tuple[str, ...]:
        """Note the settings that hold from now on; names of fields that no part means."""
        known = (*KNOWN, "drain", "controllers", "reason")
        left_out = [name for name in command.to_dict() if name not in known]
        meant = {place[0] for place in self._places if place is not None}
        for p, name in enumerate(self._pools):
            controller = command.controllers.get(name, self._controllers[p])
            if controller != self._controllers[p]:
                left_out.append("controllers")
            self._controllers[p] = controller
            limit = command.batch_limits.get(name, self._limits[p])
            if limit != self._limits[p] and "limits" not in meant:
                left_out.append("batch_limits")
            self._limits[p] = limit
        for c, name in enumerate(self._classes):
            share = command.overflow_share.get(name, self._shares[c])
            if share != self._shares[c] and ("shares", c) not in self._places:
                left_out.append("overflow_share")
            self._shares[c] = share
        for name, given, array in (
            ("targets", command.targets or command.drain, "targets"),
            ("load_source", command.load_source, "sources"),
        ):
            if given and array not in meant:
                left_out.append(name)
        return tuple(dict.fromkeys(left_out))

    def _wanted(self, command: Command, view: ClusterView) -> _Wanted:
        pools = self.scenario.fleet.pools
        targets = np.array(
            [command.targets.get(pool.name, view.instances_of(p)) for p, pool in enumerate(pools)]
        )
        for instance in command.drain:
            targets[view.instance_pool[instance]] -= 1
        targets = np.clip(targets, 0, [pool.max_instances for pool in pools])
        limits = self._limits.copy()
        for p, controller in enumerate(self._controllers):
            active = int(view.pools["active"][p])
            if controller != "fixed" and active:  # it moves the limit by itself
                limits[p] = round(int(view.pools["limit_sum"][p]) / active)
        given = command.load_source
        sources = [
            (given if isinstance(given, str) else (given or {}).get(pool.name))
            or pool.engine_source
            for pool in pools
        ]
        codes = np.array([int(SOURCES[source]) for source in sources])
        return _Wanted(targets, limits, self._shares, codes)

    # ---- what choices do ----

    def _place(self, part: str) -> tuple[str, int] | None:
        """Which array of the orders a part writes to, and where in it; None: another thing."""
        name, _, what = part.rpartition("/")
        if part == "load_source":
            return "sources", 0
        if name in self._pools and what.startswith("instances"):
            return "targets", self._pools.index(name)
        if name in self._pools and what == "batch_limit":
            return "limits", self._pools.index(name)
        if name in self._classes and what == "overflow_share":
            return "shares", self._classes.index(name)
        return None

    def _effect(self, action: NDArray[np.int64], now: Any, view: ClusterView) -> _Wanted:
        orders = self._decoder.orders(action[None], now).for_pools()
        have = np.array([view.instances_of(p) for p in range(len(self._pools))])
        return _Wanted(
            np.where(orders.targets[0] == AS_IS, have, orders.targets[0]),
            np.where(orders.limits[0] == AS_IS, self._limits, orders.limits[0]),
            np.where(np.isnan(orders.shares[0]), self._shares, orders.shares[0]),
            orders.sources[0],
        )


def _distance(effect: _Wanted, wanted: _Wanted, place: tuple[str, int]) -> float:
    """How far a choice's effect is from what is wanted: 0 is exact."""
    array, at = place
    if array == "sources":
        return float(np.sum(effect.sources != wanted.sources))
    one, other = float(getattr(effect, array)[at]), float(getattr(wanted, array)[at])
    if array == "limits":  # levels double
        return float(abs(np.log2(one) - np.log2(other))) if one != other else 0.0
    return abs(one - other)


def share_exact(translated: Sequence[Translated]) -> tuple[float, float]:
    """Share of choices that are exact, and of commands that are wholly so with nothing left out."""
    if not translated:
        return float("nan"), float("nan")
    choices = np.mean([t.exact.mean() for t in translated])
    return float(choices), float(np.mean([t.exact.all() and not t.left_out for t in translated]))
