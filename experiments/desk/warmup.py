"""Compile the simulator's code once, so that no later command waits for it.

    llmscale warmup   (or: python -m experiments.desk.warmup)

Runs a few steps of every kind of cluster: pools, virtual queues, placement, weights, regions,
split phases and caches, and the planners' own simulation. What is not compiled yet is compiled
then. It is kept on disk beside the package, or in your cache folder where that cannot be written
to; NUMBA_CACHE_DIR names another place. A bar shows how far it is; the first time takes up to five
minutes. Exit codes: 0 done, 2 after a slip, 130 when interrupted.

A new version of the package, of Numba or of Python is compiled anew; anything else is not.

Examples:
    llmscale warmup
    NUMBA_CACHE_DIR=/var/cache/llmscale llmscale warmup
    docker run --rm my-image llmscale warmup
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from llmscale_env._cli import parse_options, run_command

STEPS = 4
"""Control intervals of an episode, in which requests come, run and end."""

CLUSTERS: tuple[tuple[str, str], ...] = (
    ("mixed-slo-hours", "chiron"),
    ("mixed-slo-hours", "llumnix"),
    ("mixed-slo-hours", "twin"),
    ("chat-prefix", "hpa"),
    ("aladdin-split", "static"),
    ("placement", "aladdin"),
    ("placement-per-request", "static"),
    ("multi-model-queue", "qlm"),
    ("multi-model-queue", "shepherd"),
    ("burst-multicast", "blitzscale"),
    ("burst-multicast", "distserve-half"),
    ("multi-region", "reactive"),
)
"""Scenario and policy of an episode each: together they reach every kernel that commands use."""

ENVIRONMENTS = (
    *("llmscale/MixedSLO-Hours-v1", "llmscale/MultiModelQueue-v0", "llmscale/Placement-v1"),
    *("llmscale/PlacementPerRequest-v0", "llmscale/BurstMulticast-v0", "llmscale/MultiRegion-v1"),
)
"""One of each kind: what observes, and what steps many episodes at once."""


def main(words: Sequence[str] | None = None) -> int:
    """Run the command; 0 when it worked, 2 for a slip, 130 when interrupted (what was compiled is kept)."""
    said = "interrupted; what was compiled is kept"
    return run_command("warmup", __doc__, words, _run, interrupted=said, wordless=True)


def _run(words: Sequence[str]) -> int:
    parse_options(words, ())
    from tqdm import tqdm

    began = time.monotonic()
    print(
        "compiling once what is not compiled yet, up to five minutes", file=sys.stderr, flush=True
    )
    with _counted() as compiled:
        todo = [("episode", *each) for each in CLUSTERS]
        todo += [("environment", name, "") for name in ENVIRONMENTS]
        with tqdm(todo, unit=" clusters", disable=None, leave=False) as bar:
            for what, name, policy in bar:
                bar.set_description(f"{name} {policy}".strip())
                if what == "episode":
                    _episode(name, policy)
                else:
                    _environment(name)
    n, seconds = len(compiled), time.monotonic() - began
    if n:
        print(f"compiled {n} functions in {seconds:.0f} s; kept in {_place()}")
    else:
        print(f"nothing was left to compile ({seconds:.0f} s); it is kept in {_place()}")
    return 0


def _episode(name: str, policy: str) -> None:
    from baselines import make_policy
    from llmscale_env.control.run import run_episode
    from llmscale_env.scenarios import load_scenario

    horizon_s = STEPS * load_scenario(name).control_interval_s
    run_episode(make_policy(policy), load_scenario(name, horizon_s=horizon_s), 0)


def _environment(name: str) -> None:
    import gymnasium

    single = gymnasium.make(name)
    try:
        single.reset(seed=0)
        single.step(single.action_space.sample())
    finally:
        single.close()
    several = gymnasium.make_vec(name, num_envs=2, vectorization_mode="vector_entry_point")
    try:
        several.reset(seed=0)
        several.step(several.action_space.sample())
    finally:
        several.close()


@contextmanager
def _counted() -> Iterator[list[str]]:
    """Names of the functions that are compiled meanwhile; what is loaded from disk is not compiled."""
    import llmscale_env.sim.jit  # noqa: F401  (before Numba: it decides where compiled code is kept)

    # isort: split
    from numba.core import event

    names: list[str] = []

    class Counts(event.Listener):
        def on_start(self, event: Any) -> None:
            names.append(event.data["dispatcher"].py_func.__name__)

        def on_end(self, event: Any) -> None:
            pass

    counts = Counts()
    event.register("numba:compile", counts)
    try:
        yield names
    finally:
        event.unregister("numba:compile", counts)


def _place() -> str:
    """Where compiled code is kept."""
    from pathlib import Path

    import numba

    import llmscale_env.sim

    chosen = numba.config.CACHE_DIR  # type: ignore[attr-defined]
    return str(chosen or Path(llmscale_env.sim.__file__).parent)


if __name__ == "__main__":
    sys.exit(main())
