"""What other laws of service than the memoryless one stand for, read off ordinary runs.

`--config=configs/grids/meter.py:LAW`, LAW one of `exponential`, `lognormal` (standard deviation
half the mean), `constant`. Four groups (constant: two) train the quickstart's MLP by plain SGD, on
four seeds. `python -m launch.momentum --workdir=DIR --lags=1 --gradient_lags=1` fits a
lag polynomial to each run and to all, beside one term.
"""

from ml_collections import ConfigDict

import optdyn as od
from optdyn.base.errors import entry
from optdyn.train.grid import grid, product, seeds

GROUPS = {"exponential": 4, "lognormal": 4, "constant": 2}


def get_config(law: str = "lognormal") -> ConfigDict:
    """Raises `ConfigError` if there is no such law."""
    base = od.config("quickstart")
    base.steps = 2000
    base.method.groups = base.cluster.nodes = entry(GROUPS, law)
    base.cluster.service, base.cluster.variation = law, 0.5
    base.optimizer.momentum, base.optimizer.learning_rate = 0.0, 0.1
    base.probes.momentum, base.probes.window = True, 400
    return grid(base, product({"seed": seeds(4)}))
