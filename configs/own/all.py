"""All that is one's own in one run: what the files beside this one make, by FILE:NAME.

    python -m launch.train --config=configs/own/all.py --workdir=workdirs/own

In a folder outside of this checkout the names are those of your own files, `my_model:make` or
`path/to/my_model.py:make`; modules are found where Python finds them and in the current folder.
"""

from pathlib import Path

from ml_collections import ConfigDict

from optdyn.experiment import default

HERE = Path(__file__).parent


def get_config() -> ConfigDict:
    config = default()
    config.steps = 200
    config.batch_size = 16
    config.log_every = 20
    config.checkpoint_every = 100
    config.model.name = f"{HERE}/model.py:make"
    config.model.options.widths = (16, 16)
    config.loss = f"{HERE}/loss.py:log_cosh"
    config.metrics = (f"{HERE}/loss.py:worst", "absolute_error")
    config.data.name = f"{HERE}/data.py:load"
    config.data.options.noise = 0.05
    config.optimizer.name = f"{HERE}/optimizer.py:make"
    config.optimizer.learning_rate = 0.1
    config.optimizer.momentum = 0.5
    config.optimizer.options.softness = 0.5
    config.optimizer.schedule = f"{HERE}/schedule.py:make"
    config.optimizer.schedule_options.timescale = 50.0
    config.optimizer.warmup_steps = 10
    config.method.name = f"{HERE}/method.py:CLIPPED+asynchronous"
    config.method.options.largest = 0.2
    config.method.groups = 4
    config.cluster.nodes = 4
    config.cluster.service = f"{HERE}/law.py:make"
    config.cluster.service_options.shape = 4.0
    return config
