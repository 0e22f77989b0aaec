"""What an update is made of here: `python -m launch.profile --config=FILE --workdir=DIR`.

Measures the pieces of the hardware model (`plan/phases.py`), writes `pieces.json`, and
prints them and the flags with which a run's simulated seconds are made of them.
`python -m launch.local --processes=N -- python -m launch.profile ...` measures an all-reduce of N
processes in place of the config's network.
"""

from pathlib import Path

import jax
import pandas as pd

from optdyn.base.files import write, write_json
from optdyn.base.processes import is_writer
from optdyn.cli import app
from optdyn.devices.first_process import hold_workdir
from optdyn.experiment import Config
from optdyn.plan.phases import flags, measure, prepare
from optdyn.train.workdir import claim, text_of


def main(config: Config, workdir: Path) -> int:
    app.check_kind(config)
    work = prepare(config)
    with hold_workdir(workdir) as folder:
        claim(folder, config)
        write(folder / "config.json", text_of(config))
        taken = pd.DataFrame(measure(work.loops) | work.known).sort_index(axis=1)
        table = taken.quantile([0.5, 0.25, 0.75]).T
        table.columns = ["seconds", "lower quartile", "upper quartile"]
        about = {"device": jax.devices()[0].device_kind, "devices": jax.device_count()}
        write_json(folder / "pieces.json", {**about, "blocks": work.blocks, **table.to_dict()})
    if is_writer():
        print(table.to_string(float_format="{:.4g}".format))
        print(*flags(table["seconds"].to_dict()))
    return 0


if __name__ == "__main__":
    app.run(main)
