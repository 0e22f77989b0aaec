"""A small transformer on the King James Bible, 8 workers: `--config=configs/text.py`.

The loss is in nats a character: a uniform guess among 64 characters has ln 64 = 4.16, the
characters' frequencies have 3.02, and those of pairs of characters 2.26. After 300 updates the test
loss of three seeds is

    4e-3, as here    1.88 to 1.90 with one group (synchronous)   2.44 to 2.46 with four
    2e-3             2.05 to 2.09                                2.38 to 2.40

(`--config.method.groups=4`). The 1,500 updates end at 1.49. `:small` has 300 updates.
"""

import optdyn as od
from optdyn.base.errors import config_variant

STEPS = {"": 1500, "small": 300}


def get_config(size: str = "") -> od.Experiment:
    return od.Experiment(
        model=od.Transformer(blocks=2, width=64),
        # All 61,540 training and 3,111 test sequences would take as long as 1,000 updates.
        data=od.KJV(sequence_length=64, train_evaluated=256, test_evaluated=256),
        optimizer=od.Adam(4e-3, warmup_steps=50),
        method=od.Asynchronous(groups=1),
        cluster=od.Cluster(nodes=8, service=od.Exponential()),
        batch_size=32,
        steps=config_variant(STEPS, size),
        log_every=50,
        checkpoint_every=500,
    )
