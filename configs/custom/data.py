"""Your data: copy this file to a folder of yours, change it, and run from there

    python -m launch.train --config=FILE --workdir=DIR --config.data.name=my_data:load

`load(**config.data.options)` returns `optdyn.problem.data.Dataset` or a dict with `train` and
optionally `test` and `classes`. A split is a dict of arrays whose first axis counts examples: one
of `image` (uint8 or floats), `x` (floats of any shape), `text` (tokens), and as targets `label`
(integers from 0) or `y` (floats). It is called once a process while its code stays the same, and
must always return the same.
"""

import numpy as np


def load(examples: int = 400, inputs: int = 3, noise: float = 0.1):
    """Returns a regression problem: two sums of sines of random numbers, and noise."""
    rng = np.random.default_rng(0)
    mixing = rng.normal(size=(inputs, 2))

    def split(count: int) -> dict[str, np.ndarray]:
        x = rng.normal(size=(count, inputs))
        return {"x": x, "y": np.sin(x) @ mixing + noise * rng.normal(size=(count, 2))}

    return {"train": split(examples), "test": split(examples // 4)}
