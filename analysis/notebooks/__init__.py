"""Notebooks, each of one question: `make notebooks` executes them, in place."""
