"""The reference engine: docs/engine.md as SimPy processes, iteration by iteration.

Slow and readable; the fast engine must give the same picoseconds. Where is what:

| module | engine.md |
|---|---|
| `clock` | 1, the order of events |
| `request` | 2 |
| `lifecycle` | 3, and of 8 to 10, 15 and 16 what moves a slot from state to state |
| `instance` | 4: the iteration boundary, KV cache |
| `scheduler` | 4: admission and launch, prefill first and chunked |
| `routing` | 6 |
| `controller` | 7 |
| `engine` | 8 and the public interface, with `fleet` (orders to instances) and `observe` |
| `weights` | 9, host memory |
| `network` | 11 |
| `handover` | 12 |
| `placement` | 13 |
| `best_fit` | 14 |
| `loading` | 15: the layers of one instance |
| `parameter_pool` | 15, and of 3: where weights are |
| `live` | 16 |
| `regions` | 17: global and endpoint routing, requests on their way, queue managers |
| `spot`, `lease` | 17: spot VMs, and the slot that one serves in |
| `endpoint_scaling` | 17: rules of scaling |
| `region_orders` | 17: orders |
| `chance` | 6 and 17: hashes |
| `batch` | episodes side by side, behind the border that policies and environments know (`sim.engine`) |
| `watch`, `shown`, `ordered` | its counts, what it shows of many episodes, orders for many |
"""

from llmscale_env.sim.reference.batch import ReferenceBatch
from llmscale_env.sim.reference.engine import ReferenceEngine

__all__ = ["ReferenceBatch", "ReferenceEngine"]
