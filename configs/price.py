"""64 nodes whose times are log-normal, 30 %: what `optdyn price` is of without a `--config`.

They have 1 Gbit/s between them, and each computes 32 examples for an update.
"""

from ml_collections import ConfigDict

from optdyn.experiment import default


def get_config() -> ConfigDict:
    config = default()
    config.cluster.nodes = 64
    config.batch_size = 32 * config.cluster.nodes
    config.cluster.service, config.cluster.variation = "lognormal", 0.3
    config.cluster.bandwidth = 1e9 / 8
    return config
