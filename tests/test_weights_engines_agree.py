"""Both engines agree to the picosecond while weights flow and instances help (engine.md 15, 16)."""

from __future__ import annotations

from collections import Counter
from typing import ClassVar

import numpy as np
import pytest

from llmscale_env.sim.fast import FastEngine
from llmscale_env.sim.fast.state.layout import State
from llmscale_env.sim.spec import RequestState
from tests.engine_cases import mechanisms
from tests.moved_episodes import (
    Restless,
    difference_when_moved,
    often,
    refuse_touching,
    three_tables,
)
from tests.small_clusters import table
from tests.test_engines_agree import CHUNK, compared, never_reached
from tests.test_reference_live import live as prefill_and_decode
from tests.weight_cases import LIVE_MECHANISMS, WEIGHT_MECHANISMS, make_weight_case
from tests.weight_laws import ACQUIRING, LOADING, Watched, WatchedPairs, broken_weight_law

OFTEN = {
    False: {"layer_flows", "layer_waits", "source_changed", "fail_host", "mutated", "scaled"},
    True: {
        "live_formed",
        "live_comes_back",
        "live_waits_for_helper",
        "live_given_back",
        "co_flow",
    },
}
"""What any chunk of cases makes happen."""

both = pytest.mark.parametrize("live", [False, True], ids=["weights", "live"])


@both
@pytest.mark.parametrize(
    "first", [0, 50, *(pytest.param(first, marks=pytest.mark.slow) for first in (100, 150))]
)
def test_engines_agree_and_laws_hold(first: int, live: bool) -> None:
    reached: set[str] = set()
    for seed in range(first, first + CHUNK):
        case = make_weight_case(seed, live)
        engine, trace = compared(seed, case, reference=WatchedPairs if live else Watched)
        assert (broken := broken_weight_law(case, trace)) is None, f"seed {seed}: {broken}"
        reached |= mechanisms(engine, case, trace, LIVE_MECHANISMS | WEIGHT_MECHANISMS)
        engine.advance(2**61)  # links may be slow
        fleet, results = engine.instances(), engine.results()
        if live:
            assert not fleet["running"].any(), f"seed {seed}: something is never finished"
            done = results["state"] == RequestState.FINISHED
            outputs = case.requests.output_tokens
            assert (results["emitted_tokens"][done] == outputs[done]).all()
        else:  # with no more commands every loading ends, chains and restored copies included
            assert not np.isin(fleet["state"], [ACQUIRING, LOADING]).any(), seed
            assert all(home < 0 or there for home, there in engine.homes().tolist()), seed
    assert not OFTEN[live] - reached


@pytest.mark.slow
@both
def test_cases_reach_every_mechanism_of_weights(live: bool) -> None:
    among = LIVE_MECHANISMS if live else WEIGHT_MECHANISMS
    assert never_reached(lambda seed: make_weight_case(seed, live), among) == []


class RestlessLoader(Restless):
    seen: ClassVar[Counter[str]] = Counter()

    def look(self, states: State, e: int) -> None:
        self.seen["layers on their way"] += int(states.load["flows"][e].any())
        self.seen["copies on their way"] += int((states.home["restored_from"][e] >= -1).any())
        self.seen["mutating"] += int(states.load["mutating"][e].any())
        self.seen["batches that wait"] += int((states.live["batches"][e] > 0).any())
        self.seen["batches taken"] += int((states.live["executing"][e] >= 0).any())
        self.seen["operations"] += int((states.live["work"][e] >= 0).any())
        self.seen["two flows"] += int((states.flow["pending"][e] > 1).any())


@pytest.mark.slow
@both
def test_a_saved_episode_goes_on_the_same_while_weights_flow(live: bool) -> None:
    RestlessLoader.seen.clear()
    first = 1000 if live else 1011  # among the twelve from there is all that is named below
    for seed in range(first, first + 12):
        case = often(make_weight_case(seed, live))
        assert difference_when_moved(case, RestlessLoader) is None, seed
    names = ["layers on their way", "copies on their way", "mutating"]
    if live:
        names += ["batches that wait", "batches taken", "operations", "two flows"]
    assert all(RestlessLoader.seen[name] > 0 for name in names), RestlessLoader.seen


@both
@pytest.mark.parametrize("seed", range(8))
def test_episodes_with_weights_do_not_touch_each_other(seed: int, live: bool) -> None:
    case = make_weight_case(2000 + seed, live)
    refuse_touching(case, three_tables(case.requests), "loading", "homes")


def test_an_environment_is_told_when_weights_will_be_there() -> None:
    engine = FastEngine(prefill_and_decode(), table((0, 10, 1)))
    engine.scale([1], [0])
    for at_ps, left_ps in ((0, 420), (100, 320), (419, 1)):  # a layer every 60 ps, all seven at 420
        engine.advance(at_ps)
        engine.batch.close_windows(0, 1)
        seen = engine.batch.states.pool_seen[0, 0]
        assert (seen["loading"], seen["next_ready_ps"]) == (1, left_ps)
    engine.advance(421)
    engine.batch.close_windows(0, 1)
    assert engine.batch.states.pool_seen[0, 0]["next_ready_ps"] == -1
