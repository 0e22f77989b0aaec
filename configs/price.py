"""64 nodes with log-normal times, 30 %: the default config of `optdyn price`."""

import optdyn as od

NODES = 64


def get_config() -> od.Experiment:
    return od.Experiment(
        cluster=od.Cluster(nodes=NODES, service=od.LogNormal(0.3), bandwidth=1e9 / 8),
        batch_size=32 * NODES,
    )
