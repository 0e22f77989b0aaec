"""Devices: the axes that methods name, simulated by `vmap` or laid over a mesh."""
