"""The fast engine: closed forms over plain arrays, compiled with Numba."""

from llmscale_env.sim.fast.engine import EngineBatch, FastEngine, RouterError

__all__ = ["EngineBatch", "FastEngine", "RouterError"]
