"""Timelines: which worker reads and writes the parameters when. Plain seeded arrays.

A timeline knows speeds, stragglers and networks, and nothing of losses or gradients.
"""
