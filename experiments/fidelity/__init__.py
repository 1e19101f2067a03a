"""How near the simulation is to kernels, to held-out rows, to other simulators and to real engines."""
