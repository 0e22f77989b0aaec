"""64 nodes whose times are log-normal, 30 %: what `optdyn price` is of without a `--config`.

They have 1 Gbit/s between them, and each computes 32 examples for an update.
"""

import optdyn as od

NODES = 64


def get_config() -> od.Experiment:
    return od.Experiment(
        cluster=od.Cluster(nodes=NODES, service=od.LogNormal(0.3), bandwidth=1e9 / 8),
        batch_size=32 * NODES,
    )
