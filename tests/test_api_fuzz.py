"""Random sequences of public calls: each works or is refused in a stated way, and nothing is silently wrong.

Beside every environment stands a twin that gets only the calls that succeeded. What both give must be equal
bit for bit. A small model of each environment says beforehand which calls must be refused, and how.

    pytest tests/test_api_fuzz.py                                # a few sequences
    LLMSCALE_API_SEQUENCES=5000 pytest tests/test_api_fuzz.py    # more
    pytest -m slow tests/test_api_fuzz.py                        # 10,000
"""

from __future__ import annotations

import gc
import json
import os
import pickle
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import gymnasium as gym
import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    rule,
    run_state_machine_as_test,
)

from llmscale_env.envs import core
from llmscale_env.scenarios import Scenario, load_scenario
from tests.env_kinds import DAY, KINDS, MIXED, MULTICAST, PLACEMENT, QUEUE, REGION, REQUEST, Kind

FEW = int(os.environ.get("LLMSCALE_API_SEQUENCES", 60))
MANY = int(os.environ.get("LLMSCALE_API_SEQUENCES", 10_000))
CLOSED, UNSTARTED, BAD, ABSENT = (
    gym.error.ClosedEnvironmentError,
    gym.error.ResetNeeded,
    ValueError,
    AttributeError,
)
"""The ways in which a call is refused."""

STEPS = {
    DAY.id: 3,
    MIXED.id: 3,
    QUEUE.id: 4,
    PLACEMENT.id: 4,
    REQUEST.id: 1,
    MULTICAST.id: 4,
    REGION.id: 3,
}
"""Control intervals of the short episodes here."""


def _short(kind: Kind) -> Scenario:
    scenario = load_scenario(kind.single.scenario_name, **kind.short)
    return load_scenario(scenario, horizon_s=STEPS[kind.id] * scenario.control_interval_s)


@cache
def scenarios() -> dict[str, Scenario]:
    """By id; read once."""
    return {kind.id: _short(kind) for kind in KINDS}


@cache
def made(name: str, n: int) -> bytes:
    """A new environment of a kind, pickled: to load it takes less time than to make another one."""
    kind = next(kind for kind in KINDS if kind.id == name)
    scenario = scenarios()[name]
    if n:
        return pickle.dumps(kind.vector(n, scenario, threads=min(n, 2)))
    return pickle.dumps(kind.single(scenario, render_mode="ansi"))


WORLDS = st.sampled_from([*KINDS, *[MIXED, QUEUE, PLACEMENT, REQUEST, MULTICAST] * 3])
"""Days and regions take several times as long to begin, so they come less often."""

ODD = st.sampled_from(
    [
        True,
        -1,
        1.5,
        "3",
        float("nan"),
        float("inf"),
        {},
        {1: 2},
        [],
        (),
        b"1",
        object(),
        np.zeros(0),
        [[1], [1, 2]],
    ]
)
"""What is nowhere allowed: no seed, option, weight, number or state."""

ODD_ACTIONS: list[Callable[[tuple[int, ...]], Any]] = [
    lambda shape: np.full(shape, np.nan),
    lambda shape: np.full(shape, np.inf),
    lambda shape: np.full(shape, 0.5),
    lambda shape: np.full(shape, -1),
    lambda shape: np.full(shape, 10**6),
    lambda shape: np.full(shape, 2**64 - 1, np.uint64),
    lambda shape: np.zeros((*shape, 2), int),
    lambda shape: np.zeros(np.prod(shape) + 1, int),
    lambda shape: np.zeros(shape, complex),
    lambda shape: np.zeros(shape, "datetime64[s]"),
    lambda shape: np.full(shape, None),
    lambda shape: np.full(shape, "0"),
    lambda shape: np.zeros(shape[::-1], int) if len({1, *shape}) > 2 else [],
    lambda shape: np.zeros(np.prod(shape), int) if len({1, *shape}) > 2 else [],
    lambda shape: [[0], [0, 1]],
    lambda shape: None,
    lambda shape: {"action": 0},
    lambda shape: object(),
]

ODD_SETTINGS: list[dict[str, Any]] = [
    {"num_envs": 0},
    {"num_envs": 1.5},
    {"num_envs": True},
    {"threads": 0},
    {"threads": "two"},
    {"scenario": 3},
    {"scenario": "no-such-scenario"},
    {"overrides": 3},
    {"overrides": {"horizon_s": -1}},
    {"overrides": {"fleet.no_such_field": 1}},
    {"overrides": {3: 4}},
    {"observation": ()},
    {"observation": "clock"},
    {"observation": [3]},
    {"observation": 3},
    {"action": ()},
    {"action": [None]},
    {"action": ["residual"]},
    {"action": ["residual"], "reference": 3},
    {"reference": 3},
    {"forecaster": 3},
    {"forecaster": {"kind": "ewma", "no_such": 1}},
    {"render_mode": "no-such-mode"},
    {"render_mode": 3},
    {"shaping": "x"},
    {"shaping": -1},
    {"shaping": {"gamma": 2}},
]


def same(one: Any, other: Any) -> bool:
    """Whether two results are equal bit for bit; NaN is equal to itself."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, np.ndarray) and one.dtype.names:  # by column: what lies between is nothing
        return one.dtype == other.dtype and all(same(one[n], other[n]) for n in one.dtype.names)
    if isinstance(one, np.ndarray) and one.dtype != object:
        return (
            one.dtype == other.dtype
            and one.shape == other.shape
            and one.tobytes() == other.tobytes()
        )
    if isinstance(one, np.ndarray):
        return same(one.tolist(), other.tolist())
    return bool(type(one) is type(other) and (one == other or one != one))


@dataclass
class Player:
    """An environment, its twin, and what is known of them.

    Attributes:
        n: episodes; 0: the single form.
        begun: whether there has been an episode.
        started: which episodes can go on.
        seeded: which generators follow from a seed.
    """

    kind: Kind
    n: int
    env: Any
    twin: Any
    closed: bool = False
    begun: bool = False
    started: list[bool] = field(default_factory=list)
    seeded: list[bool] = field(default_factory=list)

    @property
    def shape(self) -> tuple[int, ...]:
        parts = len(self.nvec)
        return (self.n, parts) if self.n else (parts,)

    @property
    def nvec(self) -> Any:
        return self.env.single_action_space.nvec if self.n else self.env.action_space.nvec


class Calls(RuleBasedStateMachine):
    """Some environments, in turn."""

    ended = 0
    players = Bundle("players")
    states = Bundle("states")

    def __init__(self) -> None:
        super().__init__()
        self._open: list[Any] = []

    def teardown(self) -> None:
        for env in self._open:
            env.close()
        Calls.ended += 1
        if Calls.ended % 100 == 0:
            gc.collect()  # megabytes each, in cycles of few objects

    @initialize(
        target=players,
        kind=WORLDS,
        n=st.sampled_from([0, 0, 1, 2, 3]),
        seed=st.sampled_from([None, 0, 1, 2, 3, 4]),
    )
    def begin(self, kind: Kind, n: int, seed: int | None) -> Player:
        player = self._made(kind, n)
        if seed is not None:
            self.reset(player, seed, 0, False)
        return player

    @rule(
        target=players,
        first=players,
        n=st.sampled_from([0, 0, 2]),
        other=st.none() | WORLDS,
    )
    def make(self, first: Player, n: int, other: Kind | None) -> Player:
        return self._made(other or first.kind, n)

    def _made(self, kind: Kind, n: int) -> Player:
        env, twin = (pickle.loads(made(kind.id, n)) for _ in range(2))
        self._open += [env, twin]
        count = max(n, 1)
        return Player(kind, n, env, twin, started=[False] * count, seeded=[False] * count)

    @rule(kind=st.sampled_from(KINDS), vector=st.booleans(), odd=st.sampled_from(ODD_SETTINGS))
    def make_odd(self, kind: Kind, vector: bool, odd: dict[str, Any]) -> None:
        if not vector and {"num_envs", "threads"} & odd.keys():
            return
        form = kind.vector if vector else kind.single
        with pytest.raises(BAD):
            form(**{"scenario": scenarios()[kind.id], **odd})

    # ---- one call ----

    def _call(
        self, player: Player, call: Callable[[Any], Any], refused: type[Exception] | None = None
    ) -> Any:
        """Make a call, of which the model says how it is refused; the twin gets it if it succeeds."""
        if player.closed:
            refused = CLOSED
        if refused is not None:
            with pytest.raises(refused, match=r".{10}"):
                call(player.env)
            return None
        got = call(player.env)
        assert same(got, call(player.twin)), "the twin gives something else"
        return got

    @rule(
        player=players,
        seed=st.integers(0, 5) | st.just(2**70),
        form=st.integers(0, 4),
        without=st.booleans(),
    )
    def reset(self, player: Player, seed: int, form: int, without: bool) -> None:
        each = [seed + 3 * e for e in range(max(player.n, 1))]
        seeds = [seed, np.array([seed])[0], each, tuple(each), np.array(each)][form]
        if not player.n and form > 1:
            seeds = seed
        if without and all(player.seeded):
            seeds = None
        got = self._call(player, lambda env: env.reset(seed=seeds))
        if got is not None:
            player.begun = True
            player.started = [True] * len(player.started)
            player.seeded = [True] * len(player.started)
            self._looks_good(player, got[0])

    @rule(
        player=players, seed=st.integers(0, 5), mask=st.lists(st.booleans(), min_size=3, max_size=3)
    )
    def reset_some(self, player: Player, seed: int, mask: list[bool]) -> None:
        mask = mask[: player.n]
        bad = not any(mask) or any(not (m or s) for m, s in zip(mask, player.started, strict=False))
        options = {"reset_mask": np.array(mask, bool)}
        refused = BAD if bad or not player.n else None
        got = self._call(player, lambda env: env.reset(seed=seed, options=options), refused)
        if got is not None:
            player.begun = True
            for e in np.flatnonzero(mask):
                player.started[e] = player.seeded[e] = True

    @rule(player=players, odd=ODD, what=st.integers(0, 3))
    def reset_odd(self, player: Player, odd: Any, what: int) -> None:
        mask = np.array([True])
        given: dict[str, Any] = [
            {"seed": odd},
            {"seed": 0, "options": {"no such": odd}},
            {"seed": 0, "options": odd if not isinstance(odd, dict) or odd else {1: 2}},
            {"seed": 0, "options": {"reset_mask": mask if player.n > 1 else odd}},
        ][what]
        self._call(player, lambda env: env.reset(**given), BAD)

    def _needs_reset(self, player: Player) -> type[Exception] | None:
        return None if all(player.started) else UNSTARTED

    @rule(
        player=players,
        draws=st.lists(st.integers(0, 9), min_size=1, max_size=3),
        form=st.integers(0, 3),
        masked=st.booleans(),
    )
    def steps(self, player: Player, draws: list[int], form: int, masked: bool) -> None:
        for draw in draws:
            if masked and player.begun and not player.closed:
                action = self._possible(player, draw)
            else:
                action = np.random.default_rng(draw).integers(player.nvec, size=player.shape)
            self._stepped(
                player,
                [action, action.tolist(), action.astype(float), action.astype(np.uint8)][form],
            )

    def _possible(self, player: Player, draw: int) -> Any:
        rng = np.random.default_rng(draw)
        masks = np.atleast_2d(player.env.action_masks())
        ends = np.cumsum(player.nvec)[:-1]
        action = [
            [rng.choice(np.flatnonzero(part)) for part in np.split(row, ends)] for row in masks
        ]
        return np.array(action).reshape(player.shape)

    def _stepped(self, player: Player, action: Any) -> Any:
        got = self._call(player, lambda env: env.step(action), self._needs_reset(player))
        if got is not None:
            observation, reward, _, truncated, _ = got
            self._looks_good(player, observation)
            assert np.isfinite(reward).all()
            if not player.n:
                player.started = [not truncated]
        return got

    def _looks_good(self, player: Player, observation: Any) -> None:
        assert player.env.observation_space.contains(observation)

    @rule(player=players, odd=st.sampled_from(ODD_ACTIONS))
    def step_odd(self, player: Player, odd: Callable[[tuple[int, ...]], Any]) -> None:
        action = odd(player.shape)
        self._call(player, lambda env: env.step(action), self._needs_reset(player) or BAD)

    # ---- looking ----

    @rule(player=players, what=st.sampled_from(["action_masks", "render"]))
    def look(self, player: Player, what: str) -> None:
        nothing = not player.begun and not (player.n and what == "render")
        self._call(player, lambda env: getattr(env, what)(), UNSTARTED if nothing else None)

    @rule(player=players)
    def view(self, player: Player) -> None:
        def times(env: Any) -> Any:
            views = env.call("view") if player.n else [env.view()]
            return [(view.time_s, view.pools.copy(), view.totals.copy()) for view in views]

        self._call(player, times, None if player.begun else UNSTARTED)

    @rule(
        player=players, name=st.sampled_from(["num_envs", "weights", "no_such", "reset", "label"])
    )
    def ask(self, player: Player, name: str) -> None:
        if player.n:
            absent = name in ("no_such", "reset") or (name == "label" and not player.env._own)
            self._call(player, lambda env: env.get_attr(name), ABSENT if absent else None)

    @rule(player=players, value=st.integers(0, 3), count=st.integers(0, 3))
    def tell(self, player: Player, value: int, count: int) -> None:
        if player.n:
            bad = BAD if count not in (0, player.n) else None
            values = [value] * count if count else value
            self._call(player, lambda env: env.set_attr("label", values), bad)

    @rule(player=players, weight=st.sampled_from([0, 0.5, np.float32(2), np.int64(3)]) | ODD)
    def weigh(self, player: Player, weight: Any) -> None:
        good = type(weight) in (int, float, np.float32, np.int64) and 0 <= weight < float("inf")
        self._call(player, lambda env: env.set_weights(gpu=weight), None if good else BAD)
        if not isinstance(weight, dict) or weight:  # no class by name: nothing changes
            self._call(
                player, lambda env: env.set_weights(violations=weight), None if good else BAD
            )

    # ---- states ----

    @rule(target=states, player=players, pickled=st.booleans())
    def save(self, player: Player, pickled: bool) -> Any:
        if player.n:
            self._call(player, lambda env: env.call("save_state"), ABSENT)
            return None
        saved = []
        self._call(player, lambda env: saved.append(env.save_state()))
        if not saved:
            return None
        state = pickle.loads(pickle.dumps(saved[0])) if pickled else saved[0]
        return player.kind, state, player.begun, player.started[0], player.seeded[0]

    @rule(player=players, kept=states)
    def restore(self, player: Player, kept: Any) -> None:
        if not player.n and kept is not None:
            self._restored(player, *kept)

    @rule(player=players, other=players)
    def carry(self, player: Player, other: Player) -> None:
        """One goes on from where another is."""
        if not (player.n or other.n or other.closed):
            state = other.env.save_state()
            known = other.kind, state, other.begun, other.started[0], other.seeded[0]
            self._restored(player, *known)

    def _restored(
        self, player: Player, kind: Kind, state: Any, begun: bool, started: bool, seeded: bool
    ) -> None:
        good = []
        bad = None if kind is player.kind else BAD
        self._call(player, lambda env: good.append(env.restore_state(state)), bad)
        if good:
            player.begun, player.started = begun, [started]
            player.seeded = [player.seeded[0] or seeded]

    @rule(player=players, odd=ODD)
    def restore_odd(self, player: Player, odd: Any) -> None:
        if not player.n:
            self._call(player, lambda env: env.restore_state(odd), BAD)

    @rule(player=players, draws=st.lists(st.integers(0, 9), min_size=1, max_size=4))
    def again(self, player: Player, draws: list[int]) -> None:
        """The same steps from the same state give the same."""
        if player.n or player.closed or not all(player.started):
            return
        state, twins = player.env.save_state(), player.twin.save_state()
        found = []
        for _ in range(2):
            player.env.restore_state(state)
            player.twin.restore_state(twins)
            player.started = [True]
            results = []
            for draw in draws:
                action = np.random.default_rng(draw).integers(player.nvec)
                results.append(self._stepped(player, action))
            found.append(results)
        assert same(*found)

    @rule(target=players, player=players)
    def fork(self, player: Player) -> Player:
        if player.n:
            return player
        others: list[Any] = []
        self._call(player, lambda env: others.append(env.fork()))
        if not others:
            return player
        known = {name: getattr(player, name) for name in ("begun", "started", "seeded")}
        return Player(player.kind, 0, *others, **deepcopy(known))

    @rule(player=players, often=st.integers(1, 2))
    def close(self, player: Player, often: int) -> None:
        for _ in range(often):
            player.env.close()
            player.twin.close()
        player.closed = True


@pytest.fixture(autouse=True)
def _drawn_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests are drawn once from each state of a generator: drawing a day takes longer than a sequence."""
    draw = core.draw_requests
    known: dict[tuple[str, str], Any] = {}

    def drawn(scenario: Scenario, rng: np.random.Generator) -> Any:
        key = (scenario.name, json.dumps(rng.bit_generator.state))
        if len(known) > 200:  # a day's takes megabytes
            known.clear()
        if key not in known:
            known[key] = draw(scenario, rng), rng.bit_generator.state
        requests, rng.bit_generator.state = known[key]
        return requests

    monkeypatch.setattr(core, "draw_requests", drawn)


def run(sequences: int, length: int) -> None:
    run_state_machine_as_test(
        Calls,
        settings=settings(
            max_examples=sequences,
            stateful_step_count=length,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            derandomize=True,
        ),
    )


def test_random_calls_work_or_are_refused_and_never_go_wrong():
    run(FEW, 15)


@pytest.mark.slow
def test_ten_thousand_sequences_of_random_calls():
    run(MANY, 6)
