"""A law of service of one's own: copy this file to a folder of yours, change it, run from there

    python -m launch.train --config=FILE --workdir=DIR --config.cluster.service.name=my_law:make

`make(**config.cluster.service.options)` returns `law(rng, shape)`: how long workers take for a
gradient, over the mean, so positive and of mean 1. All that is random must come from `rng`, a NumPy
generator, and nothing may be kept between calls.
"""


def make(shape: float = 2.0):
    """Gamma: of shape 1 memoryless, and the larger the shape, the nearer to constant."""
    return lambda rng, size: rng.gamma(shape, 1 / shape, size)
