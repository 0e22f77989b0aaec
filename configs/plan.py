"""LeNet-5 on a device of 128 MiB, in a cluster of 1 Gb/s: what `launch.plan` is to plan.

`--config=configs/plan.py:resnet` for a small residual network on one of 256 MiB.
"""

from optdyn.base.errors import entry
from optdyn.experiment import Experiment

MIB = 2**20
MODELS = {
    "lenet": {"model.name": "cnn", "model.hidden": (120, 84), "plan.memory": 128 * MIB},
    "resnet": {
        "model.name": "resnet",
        "model.channels": (8, 16),
        "model.blocks": 4,
        "plan.memory": 256 * MIB,
    },
}


def get_config(model: str = "lenet") -> Experiment:
    config = Experiment()
    config = config.with_(
        {
            "batch_size": 64,
            "optimizer.momentum": 0.9,
            "cluster.latency": 1e-4,
            "cluster.bandwidth": 125e6,
        }
    )
    config = config.with_(entry(MODELS, model))
    return config
