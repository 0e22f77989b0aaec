"""Devices: the axes that strategies name, simulated by `vmap` or laid over a mesh."""
