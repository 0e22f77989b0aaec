"""The small problems that the papers' claims are measured on, and what they are trained to.

All are asynchronous SGD by memoryless groups of 16 workers; one group is synchronous SGD. Gradients
are real, the cluster is simulated.
"""

from ml_collections import ConfigDict

from optdyn.config import default

WORKERS = 16
TARGET = 0.25  # training loss of the networks
LOSSES = (1.0, 0.5, TARGET)  # on the way there, of which times are told
NETWORKS = {  # updates that are enough, by far, at any batch from 1 up
    "mlp": {"model.name": "mlp", "model.hidden": (32,)},
    "cnn": {"model.name": "cnn", "model.channels": (4, 8), "model.hidden": (32,)},
}


def network(name: str, batch_size: int, groups: int = 1) -> ConfigDict:
    """MLP 784-32-10, or LeNet's like with 4 and 8 channels and 32 hidden; 4,000 MNIST images."""
    config = _base(groups)
    config.update_from_flattened_dict(NETWORKS[name])
    config.batch_size = batch_size
    config.steps = max(400_000 // batch_size, 6_000)
    config.data.train_examples = 4000
    config.data.train_evaluated = 1000 if name == "mlp" else 500  # the CNN takes ten times as long
    return config


def quadratic(groups: int = 1, noise: float = 0.1) -> ConfigDict:
    """16 dimensions of condition 10; the examples' optima are scattered with this deviation."""
    config = _base(groups)
    config.model.name = "quadratic"
    config.model.noise = noise
    config.batch_size = 16
    config.steps = 6_000
    return config


def _base(groups: int) -> ConfigDict:
    config = default()
    config.strategy.name = "asynchronous"
    config.strategy.groups = groups
    config.cluster.nodes = WORKERS
    config.cluster.service = "exponential"
    return config
