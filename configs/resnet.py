"""ResNet-18 and 50 by the data they learn: `--config=resnet:18`, `:18,cifar10`, `:50,imagenet2012`.

    18    basic blocks in stages of 2, 2, 2, 2    11.2 million parameters for 10 classes
    50    bottlenecks in stages of 3, 4, 6, 3     25.6 million for 1,000

with preactivation (`problem/models/convnets.py`), of 64 to 512 channels, 2,048 at the
bottlenecks' ends. Data are those of `configs/images.py`, fashion_mnist if none are named, or
`synthetic`, drawn images of 224 x 224 in 1,000 classes, to measure with. Images of 28 or 32 pixels
a side have a stem that keeps their size, those of ImageNet, 224 here, its usual one.

Learning rate 0.1 for batches of 256, momentum 0.9, decay by half a cosine. It computes in bfloat16
from batches of 224 x 224 on; of small ones `--config.model.dtype=bfloat16` does, where there is an
accelerator: on CPUs it is slow. `--config.model.norm=batch` and `--config.model.remat=True` go with
either. None of these was trained to its end here: that takes an accelerator.
"""

import optdyn as od
from optdyn.base.errors import config_variant

STAGES = {"18": (2, 2, 2, 2), "50": (3, 4, 6, 3)}
SYNTHETIC = "synthetic"
EXAMPLES = {
    "mnist": 60_000,
    "fashion_mnist": 60_000,
    "cifar10": 50_000,
    "cifar100": 50_000,
    "imagenet2012": 1_281_167,
    SYNTHETIC: 1024,
}
# Images from a seed, as they are brought to the devices (`problem/data/synthetic.py`).
DRAWN = od.OwnData(
    "optdyn.problem.data.synthetic:images",
    {"side": 224, "classes": 1000, "examples": 1280},
    streaming=True,
)
BATCH = 256
EPOCHS = {"fashion_mnist": 10, "mnist": 10}  # others: 90


def get_config(variant: str = "18") -> od.Experiment:
    """DEPTH or DEPTH,DATA. Raises `ConfigError` if there is no such depth or data set."""
    depth, _, name = variant.partition(",")
    stages, name = config_variant(STAGES, depth), name or "fashion_mnist"
    epoch = config_variant(EXAMPLES, name) // BATCH
    large = name in (SYNTHETIC, "imagenet2012")
    return od.Experiment(
        model=od.ResNet(
            channels=(64, 128, 256, 512),
            stages=stages,
            stem="quarter" if large else "whole",
            bottleneck=depth == "50",
            dtype="bfloat16" if large else "float32",
        ),
        data=DRAWN if name == SYNTHETIC else prepared(name),
        optimizer=od.SGD(0.1, momentum=0.9, schedule="cosine", warmup_steps=epoch),
        batch_size=BATCH,
        steps=EPOCHS.get(name, 90) * epoch,
        log_every=epoch,
        checkpoint_every=epoch,
    )


def prepared(name: str) -> od.Data:
    """The data of `configs/images.py`, of ImageNet 224 pixels a side."""
    data = od.config(f"images:{name}").data
    return data.with_(image_size=224) if name == "imagenet2012" else data
