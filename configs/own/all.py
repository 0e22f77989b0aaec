"""All that is one's own in one run: what the files beside this one make, by MODULE:NAME.

    python -m launch.train --config=configs/own/all.py --workdir=workdirs/own

In a folder outside of this checkout the names are those of your own files, `my_model:make` or
`path/to/my_model.py:make`; modules are found where Python finds them and in the current folder.
"""

from ml_collections import ConfigDict

from optdyn.config import default

WHERE = "optdyn.configs.own."


def get_config() -> ConfigDict:
    config = default()
    config.steps = 200
    config.batch_size = 16
    config.log_every = 20
    config.checkpoint_every = 100
    config.model.name = f"{WHERE}model:make"
    config.model.options.widths = (16, 16)
    config.loss = f"{WHERE}loss:log_cosh"
    config.metrics = (f"{WHERE}loss:worst", "absolute_error")
    config.data.name = f"{WHERE}data:load"
    config.data.options.noise = 0.05
    config.optimizer.name = f"{WHERE}optimizer:make"
    config.optimizer.learning_rate = 0.1
    config.optimizer.momentum = 0.5
    config.optimizer.options.softness = 0.5
    config.optimizer.schedule = f"{WHERE}schedule:make"
    config.optimizer.schedule_options.timescale = 50.0
    config.optimizer.warmup_steps = 10
    config.strategy.name = f"{WHERE}strategy:CLIPPED+asynchronous"
    config.strategy.options.largest = 0.2
    config.strategy.groups = 4
    config.cluster.nodes = 4
    config.cluster.service = f"{WHERE}law:make"
    config.cluster.service_options.shape = 4.0
    return config
