"""The least number that is enough: a bracket from a guess, halved."""

from __future__ import annotations

from collections.abc import Callable


def least(enough: Callable[[int], bool], most: int, start: int = 1) -> int | None:
    """The least number in 1..most that is enough; None: not even the most is.

    What is enough is taken to stay so with more. Steps from a guess double until the answer is
    bracketed, then the bracket is halved. No number is asked for twice; the one below the answer is
    always asked for, and is not enough.

    Args:
        enough: whether a number is.
        most: largest number.
        start: a guess.
    """
    low, high = 0, min(max(1, start), most)
    if enough(high):
        below, step = high - 1, 1
        while below > 0 and enough(below):
            high, below = below, max(0, below - step)
            step *= 2
        low = below
    else:
        step = max(1, high // 4)
        while True:
            if high == most:
                return None
            low, high = high, min(high + step, most)
            step *= 2
            if enough(high):
                break
    while high - low > 1:
        middle = (low + high) // 2
        if enough(middle):
            high = middle
        else:
            low = middle
    return high
