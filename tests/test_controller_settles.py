"""The two departures from Algorithm 1 that are off by default: by hand, in both engines."""

from __future__ import annotations

import pytest

from llmscale_env.sim.spec import ControllerKind
from tests.small_clusters import table
from tests.test_reference_engine import controlled


def growing(kind, limit, slo_ps, prefill_per_token_ps=0, **pool):
    """Iterations of 10 ps and 1 per request, prefills of 5 ps and so much per token."""
    times = {"decode_per_request_ps": 1, "prefill_per_token_ps": prefill_per_token_ps}
    return controlled(kind, limit, slo_ps, max_batch=64, **times).with_pool(0, **pool)


def limits(engine_class, spec, rows, times) -> list[int]:
    engine = engine_class(spec, table(*rows))
    found = []
    for until in times:
        engine.advance(until)
        found.append(int(engine.instances()[0]["batch_limit"]))
    return found


@pytest.mark.parametrize("settles", [False, True])
def test_the_window_after_a_raise_begins_when_the_batch_is_full(engine_class, settles):
    """Iterations of 10 ps and 1 per request, prefills of 5 ps and 10 per token; ITL target 240 ps.

    0..117: a prefill of 10 tokens and an iteration of two. LBP 117 / 240 = 0.4875:
    2 * (0.5 / 0.4875 + 0.5) = 3.05. The third request has 30 tokens: its prefill ends at 422, the next
    iteration at 435. Seen from 117 that is an ITL of 318 ps, LBP 1.325: halved to 1.53. The batch is full at
    422. Seen from there nothing has changed, and the limit stays.
    """
    spec = growing(ControllerKind.CHIRON, 2, 240, 10, controller_settles=settles)
    rows = [(0, 5, 200), (0, 5, 200), (0, 30, 200)]
    found = limits(engine_class, spec, rows, (116, 118, 434, 436, 1000))
    assert found == [2, 3, 3, *((3, 3) if settles else (1, 1))]


def test_a_batch_that_nobody_joins_has_settled(engine_class):
    """The same without the third request: raised to 3 at 117, nobody waits, so the window begins at 129.

    A request that comes at 150 joins at 153, and its prefill ends at 308. From 117 on that is 7 tokens in
    191 ps, more than the 4 in 117 before the raise: TBP 0.933, 3.05 * (0.5 / 0.933 + 0.5) = 3.16. From 129 on
    it is 5 in 179, fewer: halved to 1.53.
    """
    rows = [(0, 5, 200), (0, 5, 200), (150, 15, 200)]
    for settles, last in ((False, 3), (True, 1)):
        spec = growing(ControllerKind.CHIRON, 2, 240, 10, controller_settles=settles)
        assert limits(engine_class, spec, rows, (118, 307, 309)) == [3, 3, last]


@pytest.mark.parametrize(
    "reverts, kind, after",
    [
        (False, ControllerKind.CHIRON, 8),
        (True, ControllerKind.CHIRON, 16),
        (True, ControllerKind.CHIRON_LITERAL, 16),
    ],
)
def test_a_raise_without_gain_is_taken_back(engine_class, reverts, kind, after):
    """`test_a_halving_does_not_lead_to_the_next`: 17.01 at 213, and less throughput at 434."""
    spec = growing(kind, 16, 30, controller_window_iterations=8, controller_reverts=reverts)
    assert limits(engine_class, spec, [(0, 1, 20)] * 900, (214, 435)) == [17, after]


def test_a_raise_that_breaks_the_itl_target_is_halved_all_the_same(engine_class):
    """The first case above: LBP, not TBP, speaks at 435."""
    spec = growing(ControllerKind.CHIRON, 2, 240, 10, controller_reverts=True)
    rows = [(0, 5, 200), (0, 5, 200), (0, 30, 200)]
    assert limits(engine_class, spec, rows, (118, 436)) == [3, 1]


@pytest.mark.parametrize("settles", [False, True])
def test_a_lowered_limit_is_judged_by_the_batch_that_it_leaves(engine_class, settles):
    """Iterations of 10 ps and 1 per request, prefills of 5; ITL target 13 ps.

    0..19: a prefill and an iteration of four, LBP 19 / 13: halved to 2. One leaves at 33, one at 46, one at
    58. Seen from 19 the first of these is an ITL of 14 ps, LBP 1.08: halved to 1. Seen from 33 the second is
    13, halved too. The batch has settled at 46, when two run: 12 / 13 = 0.92, and the limit stays.
    """
    spec = growing(ControllerKind.CHIRON, 4, 13, controller_settles=settles)
    rows = [(0, 1, 3), (0, 1, 4), (0, 1, 5), (0, 1, 60)]
    times = (18, 20, 34, 47, 59, 300)
    assert limits(engine_class, spec, rows, times) == [4, 2, *([2] * 4 if settles else [1] * 4)]
