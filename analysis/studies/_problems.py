"""The small problems of the studies: asynchronous SGD by memoryless groups of 16 workers."""

import optdyn as od

WORKERS = 16
TARGET = 0.25  # training loss of the networks
LOSSES = (1.0, 0.5, TARGET)  # on the way there, of which times are told
NETWORKS: dict[str, od.Model] = {
    "mlp": od.MLP(hidden=(32,)),
    "cnn": od.CNN(channels=(4, 8), hidden=(32,)),
}


def network(name: str, batch_size: int, groups: int = 1) -> od.Experiment:
    """Returns the MLP 784-32-10, or a CNN of 4 and 8 channels and 32 hidden; 4,000 MNIST images."""
    evaluated = 1000 if name == "mlp" else 500  # the CNN takes ten times as long
    return od.Experiment(
        model=NETWORKS[name],
        data=od.MNIST5k(train_examples=4000, train_evaluated=evaluated),
        method=od.Asynchronous(groups=groups),
        cluster=od.Cluster(nodes=WORKERS, service=od.Exponential()),
        batch_size=batch_size,
        steps=max(400_000 // batch_size, 6_000),  # enough, by far, at any batch from 1 up
    )
