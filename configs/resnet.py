"""ResNet-18 and 50 by the data they learn: `--config=resnet:18`, `:18,cifar10`, `:50,imagenet2012`.

    18    basic blocks in stages of 2, 2, 2, 2    11.2 million parameters for 10 classes
    50    bottlenecks in stages of 3, 4, 6, 3     25.6 million for 1,000

with preactivation (`problem/models/resnet.py`), of 64 to 512 channels, 2,048 at the
bottlenecks' ends. Data are those of `configs/images.py`, fashion_mnist if none are named, or
`synthetic`, drawn images of 224 x 224 in 1,000 classes, to measure with. Images of 28 or 32 pixels
a side have a stem that keeps their size, those of ImageNet, 224 here, its usual one.

Learning rate 0.1 for batches of 256, momentum 0.9, decay by half a cosine. It computes in bfloat16
from batches of 224 x 224 on; of small ones `--config.model.dtype=bfloat16` does, where there is an
accelerator: on CPUs it is slow. `--config.model.norm=batch` and `--config.model.remat=True` go with
either. None of these was trained to its end here: that takes an accelerator.
"""

import optdyn as od
from optdyn.base.errors import entry
from optdyn.experiment import Experiment

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
EPOCHS = {"fashion_mnist": 10, "mnist": 10}  # others: 90


def get_config(variant: str = "18") -> Experiment:
    """DEPTH or DEPTH,DATA. Raises `ConfigError` if there is no such depth or data set."""
    depth, _, name = variant.partition(",")
    stages, name = entry(STAGES, depth), name or "fashion_mnist"
    examples = entry(EXAMPLES, name)
    config = drawn() if name == SYNTHETIC else od.config(f"images:{name}")
    large = name in (SYNTHETIC, "imagenet2012")
    if name == "imagenet2012":
        config = config.with_(
            {
                "data.image_size": 224,
            }
        )
    config = config.with_(
        {
            "model.name": "resnet",
            "model.stages": stages,
            "model.bottleneck": depth == "50",
            "model.channels": (64, 128, 256, 512),
            "model.stem": "quarter" if large else "whole",
            "model.dtype": "bfloat16" if large else "float32",
            "batch_size": 256,
        }
    )
    epoch = config.log_every = config.checkpoint_every = examples // config.batch_size
    config = config.with_(
        {
            "steps": EPOCHS.get(name, 90) * epoch,
            "optimizer.learning_rate": 0.1,
            "optimizer.momentum": 0.9,
            "optimizer.schedule": "cosine",
            "optimizer.warmup_steps": epoch,
        }
    )
    return config


def drawn() -> Experiment:
    """Images from a seed, as they are brought to the devices (`problem/data/synthetic.py`)."""
    config = Experiment()
    config = config.with_(
        {
            "data.name": "optdyn.problem.data.synthetic:images",
        }
    )
    config.data.options.update(side=224, classes=1000, examples=1280)
    config = config.with_(
        {
            "data.streaming": True,
        }
    )
    return config
