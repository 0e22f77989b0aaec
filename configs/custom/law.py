"""Your service law: copy this file to a folder of yours, change it, and run from there

    python -m launch.train --config=FILE --workdir=DIR --config.cluster.service.name=my_law:make

`make(**config.cluster.service.options)` returns `law(rng, shape)`, which returns workers' times for
a gradient over the mean: positive, with mean 1. All randomness must come from `rng`, a NumPy
generator, and calls must have no memory.
"""


def make(shape: float = 2.0):
    """Returns a gamma law: memoryless with shape 1, nearly constant with a large shape."""
    return lambda rng, size: rng.gamma(shape, 1 / shape, size)
