"""Gymnasium environments in which a policy runs a simulated LLM serving cluster.

Importing the package registers the environments (see `ENVIRONMENTS`), so both of these work:

    import llmscale_env
    gymnasium.make("llmscale/MixedSLO-v1")

    gymnasium.make("llmscale_env:llmscale/MixedSLO-v1")  # also in a worker process

Nothing else is imported before it is used: the names in `__all__` load on first access.
"""

from __future__ import annotations

from llmscale_env import _interrupt  # noqa: F401

# isort: split
from importlib import import_module
from typing import TYPE_CHECKING

import gymnasium

from llmscale_env.envs import ENVIRONMENTS, EnvironmentEntry

# For type checkers, which do not follow `__getattr__`; `X as X` tells them that the name is public.
if TYPE_CHECKING:
    from llmscale_env.control.command import Command as Command
    from llmscale_env.control.policy import Policy as Policy
    from llmscale_env.control.results.result import EpisodeResult as EpisodeResult
    from llmscale_env.control.run import run_episode as run_episode
    from llmscale_env.control.run import run_streamed as run_streamed
    from llmscale_env.control.view import ClusterView as ClusterView
    from llmscale_env.scenarios.load import load_scenario as load_scenario
    from llmscale_env.scenarios.schema import Scenario as Scenario
    from llmscale_env.sim.custom_router import router as router
    from llmscale_env.workload.requests import RequestTable as RequestTable

__version__ = "0.1.0"


# Public names and the modules that hold them, imported on first access (PEP 562): a script that
# only makes an environment does not pay for pandas, and one that only reads a trace not for Numba.
_LAZY: dict[str, str] = {
    "ClusterView": "llmscale_env.control.view",
    "Command": "llmscale_env.control.command",
    "EpisodeResult": "llmscale_env.control.results.result",
    "Policy": "llmscale_env.control.policy",
    "RequestTable": "llmscale_env.workload.requests",
    "Scenario": "llmscale_env.scenarios.schema",
    "load_scenario": "llmscale_env.scenarios.load",
    "router": "llmscale_env.sim.custom_router",
    "run_episode": "llmscale_env.control.run",
    "run_streamed": "llmscale_env.control.run",
}

__all__ = ["ENVIRONMENTS", "EnvironmentEntry", "__version__", "register_environments", *_LAZY]


def register_environments() -> None:
    """Register every environment with Gymnasium, except those that are registered already.

    An id that is taken stays taken, silently: Gymnasium would warn, and a worker process or a
    reload of this module registers the same entries again.
    """
    for entry in ENVIRONMENTS:
        if entry.id not in gymnasium.registry:
            gymnasium.register(
                id=entry.id,
                entry_point=entry.entry_point,
                vector_entry_point=entry.vector_entry_point,
            )


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_LAZY[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


register_environments()
