"""Observation blocks of weights that flow: who loads, how far, and how full the links are."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from llmscale_env.control.snapshot import Snapshot
from llmscale_env.envs.observation_blocks.base import Entry, Floats, share
from llmscale_env.scenarios.schema import Scenario
from llmscale_env.sim.compile import compile_cluster
from llmscale_env.sim.spec import InstanceState

PARTS = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Bounds of the histogram of layers that instances have which load."""

UNTIL_S = 5.0
"""Where the scale of the time ends until the next instance serves."""


class WeightsBlock:
    """Instances that load, by layers that have come; those that help or become others; copies in memory."""

    name = "weights"

    def __init__(self, scenario: Scenario) -> None:
        spec = compile_cluster(scenario)
        self._pools = [pool.name for pool in scenario.fleet.pools]
        self._llms = scenario.fleet.llms
        pool_of = np.array(spec.pool_of_slot)
        self._mine = [np.flatnonzero(pool_of == p) for p in range(len(self._pools))]
        self._layers = [pool.layers for pool in spec.pools]

    def entries(self) -> list[Entry]:
        out = []
        for p in self._pools:
            for k, (low, high) in enumerate(pairwise(PARTS)):
                text = f"load, with {low:.0%} to {high:.0%} of the layers"
                out.append(Entry(f"{p}/layers_{k}", f"instances that {text}, / slots"))
            out += [
                Entry(
                    f"{p}/next", f"time until the next one serves / {UNTIL_S:g} s; 1: none known"
                ),
                Entry(f"{p}/sending", "share of active instances from which others load"),
                Entry(f"{p}/helping", "instances that load and help an overloaded one / slots"),
                Entry(f"{p}/becoming", "instances that drain to become a twin / slots"),
            ]
        out += [Entry(f"{llm}/copy", "1: some machine's memory has the copy") for llm in self._llms]
        return out

    def encode(self, now: Snapshot, last_action: Floats) -> Floats:
        seen = now.weights
        state = seen.instances["state"]
        loading = np.isin(state, (InstanceState.ACQUIRING, InstanceState.LOADING))
        sends = _senders(seen.source, loading)
        columns: list[NDArray] = []
        for mine, layers in zip(self._mine, self._layers, strict=True):
            n, mine_loading = len(mine), loading[:, mine]
            part = np.minimum(seen.layers[:, mine] / layers, 1 - 1e-9)
            for low, high in pairwise(PARTS):
                columns.append((mine_loading & (part >= low) & (part < high)).sum(axis=1) / n)
            left = np.where(np.isnan(seen.left_s[:, mine]), np.inf, seen.left_s[:, mine])
            active = state[:, mine] == InstanceState.ACTIVE
            columns += [
                np.minimum(left.min(axis=1) / UNTIL_S, 1.0),
                share((sends[:, mine] & active).sum(axis=1), active.sum(axis=1)),
                (mine_loading & (seen.partner[:, mine] >= 0)).sum(axis=1) / n,
                seen.mutating[:, mine].sum(axis=1) / n,
            ]
        return np.concatenate([np.stack(columns, axis=1), seen.there], axis=1)


def _senders(source: NDArray[np.int64], loading: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """(E, I) whether anybody loads from a slot."""
    found = np.zeros(source.shape, bool)
    e, taker = np.nonzero(loading & (source >= 0) & (source < source.shape[1]))
    found[e, source[e, taker]] = True
    return found


class Links:
    """Use of the instances' own links to other machines, by KV caches and weights."""

    name = "links"

    def __init__(self, scenario: Scenario) -> None:
        pool_of = np.array(compile_cluster(scenario).pool_of_slot)
        self._pools = [pool.name for pool in scenario.fleet.pools]
        self._mine = [np.flatnonzero(pool_of == p) for p in range(len(self._pools))]

    def entries(self) -> list[Entry]:
        out = []
        for p in self._pools:
            for way, text in (("out", "to"), ("in", "from")):
                what = f"use of links {text} other machines"
                out.append(Entry(f"{p}/{way}", f"{what}, mean of instances that are not off"))
                out.append(Entry(f"{p}/{way}_max", f"{what}, the fullest one"))
        return out

    def encode(self, now: Snapshot, last_action: Floats) -> Floats:
        seen = now.weights
        there = seen.instances["state"] != InstanceState.OFF
        columns = []
        for mine in self._mine:
            for use in (seen.out_use, seen.in_use):
                own = np.where(there[:, mine], use[:, mine], 0.0)
                columns += [share(own.sum(axis=1), there[:, mine].sum(axis=1)), own.max(axis=1)]
        return np.stack(columns, axis=1)
