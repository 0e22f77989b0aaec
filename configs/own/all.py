"""All that is one's own in one run: what the files beside this one make, by FILE:NAME.

    python -m launch.train --config=configs/own/all.py --workdir=workdirs/own

In a folder outside of this checkout the names are those of your own files, `my_model:make` or
`path/to/my_model.py:make`; modules are found where Python finds them and in the current folder.
"""

from pathlib import Path

from optdyn.experiment import Experiment

HERE = Path(__file__).parent


def get_config() -> Experiment:
    config = Experiment()
    config = config.with_(
        {
            "steps": 200,
            "batch_size": 16,
            "log_every": 20,
            "checkpoint_every": 100,
            "model.name": f"{HERE}/model.py:make",
            "model.options.widths": (16, 16),
            "loss": f"{HERE}/loss.py:log_cosh",
            "metrics": (f"{HERE}/loss.py:worst", "absolute_error"),
            "data.name": f"{HERE}/data.py:load",
            "data.options.noise": 0.05,
            "optimizer.name": f"{HERE}/optimizer.py:make",
            "optimizer.learning_rate": 0.1,
            "optimizer.momentum": 0.5,
            "optimizer.options.softness": 0.5,
            "optimizer.schedule": f"{HERE}/schedule.py:make",
            "optimizer.schedule_options.timescale": 50.0,
            "optimizer.warmup_steps": 10,
            "method.name": f"{HERE}/method.py:CLIPPED+asynchronous",
            "method.options.largest": 0.2,
            "method.groups": 4,
            "cluster.nodes": 4,
            "cluster.service.name": f"{HERE}/law.py:make",
            "cluster.service.options.shape": 4.0,
        }
    )
    return config
