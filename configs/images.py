"""Data sets of images with their standard preprocessing: `--config=configs/images.py:cifar10`.

`optdyn prepare NAME` prepares them once, fashion_mnist from the files of Debian's package
dataset-fashion-mnist, 60,000 + 10,000 images.
"""

from typing import NamedTuple

import optdyn as od
from optdyn.base.errors import config_variant


class Standard(NamedTuple):
    examples: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    augment: str = ""
    image_size: int = 0


STANDARD = {
    "mnist": Standard(60_000, (0.1307,), (0.3081,)),
    "fashion_mnist": Standard(60_000, (0.286,), (0.353,)),
    "cifar10": Standard(50_000, (0.4914, 0.4822, 0.4465), (0.247, 0.2435, 0.2616), "crop_flip"),
    "cifar100": Standard(50_000, (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762), "crop_flip"),
    "imagenet2012": Standard(
        1_281_167, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225), "crop_flip", 64
    ),
}
EPOCHS, BATCH = 3, 64
LENET = od.CNN(channels=(6, 16), hidden=(120, 84))
RESNET = od.ResNet(channels=(16, 32, 64), blocks=9)


def get_config(name: str = "fashion_mnist") -> od.Experiment:
    """Returns three epochs of LeNet-5 on gray images, or of a residual network on coloured ones."""
    chosen = config_variant(STANDARD, name)
    epoch = chosen.examples // BATCH
    return od.Experiment(
        model=LENET if len(chosen.mean) == 1 else RESNET,
        data=od.TFDS(
            dataset=name,
            mean=chosen.mean,
            std=chosen.std,
            augment=chosen.augment,
            image_size=chosen.image_size,
            streaming=name == "imagenet2012",
        ),
        optimizer=od.SGD(0.02, momentum=0.9),
        batch_size=BATCH,
        steps=EPOCHS * epoch,
        log_every=epoch,
        checkpoint_every=epoch,
    )
