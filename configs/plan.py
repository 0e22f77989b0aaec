"""LeNet-5 on a device of 128 MiB, in a cluster of 1 Gb/s: an example for `launch.plan`.

`configs/plan.py:resnet` is a small residual network on a device of 256 MiB.
"""

import optdyn as od
from optdyn.base.errors import config_variant

MIB = 2**20
MODELS = {
    "lenet": (od.CNN(hidden=(120, 84)), 128 * MIB),
    "resnet": (od.ResNet(channels=(8, 16), blocks=4), 256 * MIB),
}


def get_config(name: str = "lenet") -> od.Experiment:
    model, memory = config_variant(MODELS, name)
    return od.Experiment(
        model=model,
        optimizer=od.SGD(momentum=0.9),
        cluster=od.Cluster(latency=1e-4, bandwidth=125e6),
        batch_size=64,
        plan=od.Plan(memory=memory),
    )
