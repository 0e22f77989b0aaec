"""A run with your model, loss, data, optimizer, schedule, law and method: FILE:NAME of these files.

    python -m launch.train --config=configs/custom/all.py --workdir=workdirs/custom

Outside this checkout the names are those of your files, `my_model:make` or
`path/to/my_model.py:make`; modules are found where Python finds them and in the current folder.
"""

from pathlib import Path

import optdyn as od

HERE = Path(__file__).parent


def get_config() -> od.Experiment:
    config = od.Experiment(
        model=od.OwnModel(f"{HERE}/model.py:make", {"widths": (16, 16)}),
        loss=f"{HERE}/loss.py:log_cosh",
        metrics=(f"{HERE}/loss.py:worst", "absolute_error"),
        data=od.OwnData(f"{HERE}/data.py:load", {"noise": 0.05}),
        optimizer=od.Optax(
            name=f"{HERE}/optimizer.py:make",
            options={"softness": 0.5},
            learning_rate=0.1,
            momentum=0.5,
            schedule=f"{HERE}/schedule.py:make",
            schedule_options={"timescale": 50.0},
            warmup_steps=10,
        ),
        cluster=od.Cluster(nodes=4, service=od.OwnLaw(f"{HERE}/law.py:make", {"shape": 4.0})),
        batch_size=16,
        steps=200,
        log_every=20,
        checkpoint_every=100,
    )
    return config.with_(
        {
            "method.name": f"{HERE}/method.py:Clipped+asynchronous",
            "method.Clipped.largest": 0.2,
            "method.asynchronous.groups": 4,
        }
    )
