"""64 nodes whose times are log-normal, 30 %: what `optdyn price` is of without a `--config`."""

from ml_collections import ConfigDict

from optdyn.config import default


def get_config() -> ConfigDict:
    config = default()
    config.batch_size = config.cluster.nodes = 64
    config.cluster.service, config.cluster.variation = "lognormal", 0.3
    config.cluster.bandwidth = 1e9 / 8
    return config
