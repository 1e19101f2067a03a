"""`LLMSCALE_CHECKED=1`: every index and every whole number of a kernel, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

KERNEL = """
import numpy as np
from llmscale_env.sim.jit import njit

@njit(cache=False)
def kernel(x, i, a, b):
    total = a + b
    total -= x[i]
    x[0] *= total
    return np.uint64(a) * np.uint64(b) + np.uint64(x[0])

def said(*args):
    try:
        return int(kernel(np.array([4, 2, 3]), *args))
    except (IndexError, OverflowError) as error:
        return type(error).__name__

print([said(*args) for args in {cases}])
"""


def answers(folder: Path, checked: str, *cases: tuple[int, ...]) -> str:
    script = folder / "kernel.py"  # a kernel's source is read, so it has to be in a file
    script.write_text(KERNEL.replace("{cases}", repr(cases)), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, script],
        env={**os.environ, "LLMSCALE_CHECKED": checked, "PYTHONPATH": os.getcwd()},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def test_what_does_not_fit_is_told_and_hashes_wrap_as_they_are_meant_to(tmp_path: Path):
    # By hand: total = a + b - x[i], x[0] = 4 total, and the product of the unsigned wraps (2^80 to 0).
    cases = ((1, 1, 2), (2, 0, 7), (1, 2**40, 2**40))
    assert answers(tmp_path, "1", *cases) == str([2 + 4, 16, 4 * (2**41 - 2)])
    # 2^63 - 4 and -2^63 just fit, although the nearest float of the first is 2^63.
    edges = ((1, 2**61 + 1, 0), (1, -(2**61) + 2, 0))
    assert answers(tmp_path, "1", *edges) == str([2**63 - 4, 2**63])
    # An index; a sum above, a difference below, a sum below; a product.
    wrong = ((3, 0, 0), (1, 2**62, 2**62), (1, -(2**63), 0), (0, -(2**62), -(2**62) - 1))
    found = answers(tmp_path, "1", *wrong, (1, 2**61, 2))
    assert found == str(["IndexError", *["OverflowError"] * 4])


def test_without_it_nothing_is_checked(tmp_path: Path):
    # So it costs nothing either: 2^63 wraps; minus 2 and times 4 it is -8, as an unsigned number.
    assert answers(tmp_path, "", (1, 2**62, 2**62)) == str([2**64 - 8])
