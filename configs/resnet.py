"""ResNet-18 and ResNet-50 on images: `--config=resnet:18`, `:18,cifar10`, `:50,imagenet2012`.

    18    basic blocks in stages of 2, 2, 2, 2    11.2 million parameters for 10 classes
    50    bottlenecks in stages of 3, 4, 6, 3     25.6 million for 1,000

Data are those of `configs/images.py`, by default fashion_mnist, or `synthetic`, 224 x 224 images in
1,000 classes, for measurements. Images of 28 or 32 pixels a side have a stem that keeps their size.

Images of 224 x 224 are computed in bfloat16; on an accelerator `--config.model.dtype=bfloat16` is
for small ones, too. None of these was trained to its end here: that takes an accelerator.
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
# Streamed synthetic images (`problem/data/synthetic.py`).
SYNTHETIC_DATA = od.OwnData(
    "optdyn.problem.data.synthetic:images",
    {"side": 224, "classes": 1000, "examples": 1280},
    streaming=True,
)
BATCH = 256
EPOCHS = {"fashion_mnist": 10, "mnist": 10}  # others: 90


def get_config(variant: str = "18") -> od.Experiment:
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
        data=SYNTHETIC_DATA if name == SYNTHETIC else prepared(name),
        optimizer=od.SGD(0.1, momentum=0.9, schedule="cosine", warmup_steps=epoch),
        batch_size=BATCH,
        steps=EPOCHS.get(name, 90) * epoch,
        log_every=epoch,
        checkpoint_every=epoch,
    )


def prepared(name: str) -> od.Data:
    """Returns the data of `configs/images.py`, ImageNet with 224 pixels a side."""
    data = od.config(f"images:{name}").data
    return data.with_(image_size=224) if name == "imagenet2012" else data
