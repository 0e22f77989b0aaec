"""A small MLP on MNIST (5,000 embedded images), 16 workers: the run to start from."""

import optdyn as od


def get_config() -> od.Experiment:
    return od.Experiment(
        model=od.MLP(hidden=(64,)),
        data=od.MNIST5k(),
        optimizer=od.SGD(learning_rate=0.2),
        method=od.Asynchronous(groups=8),
        cluster=od.Cluster(nodes=16, service=od.Exponential(), seconds_per_example=1e-3),
        batch_size=64,
        steps=2000,
        log_every=50,
        checkpoint_every=500,
    )
