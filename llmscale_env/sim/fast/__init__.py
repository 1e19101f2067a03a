"""The fast engine: closed forms over plain arrays, compiled with Numba.

Rooms from the ground up: `state`, `serving`, `weights`, `fleet`, `regions`. `advance` is the event loop;
`engine` is what Python sees of it, with the commands in the files `*_orders`; `batch_orders`,
`batch_observe` and `windows` are for many episodes.
"""

from llmscale_env.sim.fast.engine import EngineBatch, FastEngine, RouterError

__all__ = ["EngineBatch", "FastEngine", "RouterError"]
