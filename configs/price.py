"""64 nodes whose times are log-normal, 30 %: what `optdyn price` is of without a `--config`.

They have 1 Gbit/s between them, and each computes 32 examples for an update.
"""

from optdyn.experiment import Experiment


def get_config() -> Experiment:
    config = Experiment()
    config = config.with_(
        {
            "cluster.nodes": 64,
        }
    )
    config = config.with_(
        {
            "batch_size": 32 * config.cluster.nodes,
            "cluster.service.name": "lognormal",
            "cluster.service.variation": 0.3,
            "cluster.bandwidth": 1e9 / 8,
        }
    )
    return config
