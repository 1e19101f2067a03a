"""The reference engine: docs/engine.md as SimPy processes, iteration by iteration.

Slow and readable; the fast engine must give the same picoseconds, and has the same rooms. `engine` is one
episode: its public interface and, in `fleet`, `regions` and `serving.placement`, its commands. `instance` is
one slot and its iterations. `batch` puts episodes behind the border of `sim.engine`, with `windows` (counts),
`batch_observe` and `batch_orders`. The head of each file names its section of engine.md.
"""

from llmscale_env.sim.reference.batch import ReferenceBatch
from llmscale_env.sim.reference.engine import ReferenceEngine

__all__ = ["ReferenceBatch", "ReferenceEngine"]
