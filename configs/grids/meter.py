"""What other laws of service than the memoryless one stand for, read off ordinary runs.

`--config=configs/grids/meter.py:LAW`, LAW one of `exponential`, `lognormal` (standard deviation
half the mean), `constant`. Four groups (constant: two) train the quickstart's MLP by plain SGD, on
four seeds. `python -m launch.momentum --workdir=DIR --lags=1 --gradient_lags=1` fits a
lag polynomial to each run and to all, beside one term.
"""

import optdyn as od
from optdyn.base.errors import entry
from optdyn.train.grid import Grid, product, seeds

GROUPS = {"exponential": 4, "lognormal": 4, "constant": 2}


def get_config(law: str = "lognormal") -> Grid:
    """Raises `ConfigError` if there is no such law."""
    base = od.config("quickstart")
    base = base.with_(
        {
            "steps": 2000,
        }
    )
    base.method.groups = base.cluster.nodes = entry(GROUPS, law)
    base = base.with_(
        {
            "cluster.service.name": law,
            "cluster.service.variation": 0.5,
            "optimizer.momentum": 0.0,
            "optimizer.learning_rate": 0.1,
            "probes.momentum": True,
            "probes.window": 400,
        }
    )
    return Grid(base, product({"seed": seeds(4)}))
