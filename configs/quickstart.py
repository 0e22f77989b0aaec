"""MNIST (the embedded 5,000 images), a small MLP, 16 workers: the run to start from."""

from ml_collections import ConfigDict

from optdyn.experiment import default


def get_config() -> ConfigDict:
    config = default()
    config.steps = 2000
    config.batch_size = 64
    config.log_every = 50
    config.checkpoint_every = 500
    config.model.name = "mlp"
    config.model.hidden = (64,)
    config.optimizer.learning_rate = 0.2
    config.method.name = "asynchronous"
    config.method.groups = 8
    config.cluster.nodes = 16
    config.cluster.service = "exponential"
    config.cluster.seconds_per_example = 1e-3
    return config
