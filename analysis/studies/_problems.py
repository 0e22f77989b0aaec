"""The small problems that the papers' claims are measured on, and what they are trained to.

All are asynchronous SGD by memoryless groups of 16 workers; one group is synchronous SGD. Gradients
are real, the cluster is simulated.
"""

from optdyn.clock.cluster import Cluster
from optdyn.clock.service import Exponential
from optdyn.experiment import Experiment
from optdyn.methods.read.asynchronous import Asynchronous
from optdyn.problem.data.kinds import MNIST5k
from optdyn.problem.models import CNN, MLP, Model, Quadratic

WORKERS = 16
TARGET = 0.25  # training loss of the networks
LOSSES = (1.0, 0.5, TARGET)  # on the way there, of which times are told
NETWORKS: dict[str, Model] = {
    "mlp": MLP(hidden=(32,)),
    "cnn": CNN(channels=(4, 8), hidden=(32,)),
}


def network(name: str, batch_size: int, groups: int = 1) -> Experiment:
    """MLP 784-32-10, or LeNet's like with 4 and 8 channels and 32 hidden; 4,000 MNIST images."""
    evaluated = 1000 if name == "mlp" else 500  # the CNN takes ten times as long
    return _base(groups).with_(
        model=NETWORKS[name],
        batch_size=batch_size,
        steps=max(400_000 // batch_size, 6_000),  # enough, by far, at any batch from 1 up
        data=MNIST5k(train_examples=4000, train_evaluated=evaluated),
    )


def quadratic(groups: int = 1, noise: float = 0.1) -> Experiment:
    """16 dimensions of condition 10; the examples' optima are scattered with this deviation."""
    return _base(groups).with_(model=Quadratic(noise=noise), batch_size=16, steps=6_000)


def _base(groups: int) -> Experiment:
    cluster = Cluster(nodes=WORKERS, service=Exponential())
    return Experiment(method=Asynchronous(groups=groups), cluster=cluster)
