"""The simulator: two engines with one semantics (docs/engine.md).

`spec` is what both run from, and `compile` makes one from a scenario. `engine` is the border that everybody
above knows: `orders` go in, `observed` comes out. `fast` is compiled with Numba; `reference` is the same in
SimPy, to be read. Both have the same rooms. `metrics` turns the records of an episode into figures.
"""
