"""The reference engine: docs/engine.md as SimPy processes, iteration by iteration.

Slow and readable; the fast engine must give the same picoseconds. Where is what:

| module | engine.md |
|---|---|
| `clock` | 1, the order of events |
| `request` | 2 |
| `instance` | 3 and 4: life of a slot, the iteration boundary, KV cache |
| `scheduler` | 4: admission and launch, prefill first and chunked |
| `router` | 6 |
| `controller` | 7 |
| `engine` | 8 and the public interface |
| `weights` | 9, host memory |
| `network` | 11 |
| `handover` | 12 |
| `placement` | 13 |
| `best_fit` | 14 |
"""

from llmscale_env.sim.reference.engine import ReferenceEngine

__all__ = ["ReferenceEngine"]
