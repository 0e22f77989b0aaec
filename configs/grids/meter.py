"""The implicit momentum of several service laws, measured in ordinary runs.

`--config=configs/grids/meter.py:LAW`, LAW one of `exponential`, `lognormal` (standard deviation
half the mean), `constant`. Four groups (constant: two) train the quickstart's MLP by plain SGD,
with four seeds. `optdyn momentum DIR` reads single runs and all seeds together.
"""

import optdyn as od
from optdyn.base.errors import config_variant

LAWS = {
    "exponential": (4, od.Exponential()),
    "lognormal": (4, od.LogNormal(0.5)),
    "constant": (2, od.Constant()),
}


def get_config(name: str = "lognormal") -> od.Grid:
    groups, law = config_variant(LAWS, name)
    base = od.config("quickstart").with_(
        optimizer=od.SGD(0.1),
        method=od.Asynchronous(groups=groups),
        cluster=od.Cluster(nodes=groups, service=law),
        steps=2000,
        probes=od.Probes(momentum=True, window=400),
    )
    return od.Grid(base, od.product({"seed": range(4)}))
