"""Profiles an update on this machine: `python -m launch.profile --config=FILE --workdir=DIR`.

Measures the parts of the hardware model (`plan/phases.py`), writes `pieces.json`, and prints them
with the flags that make simulated seconds of them. With
`python -m launch.local --processes=N -- python -m launch.profile ...` the network is an all-reduce
of N processes in place of the config's.
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
        samples = pd.DataFrame(measure(work.loops) | work.known).sort_index(axis=1)
        table = samples.quantile([0.5, 0.25, 0.75]).T
        table.columns = ["seconds", "lower quartile", "upper quartile"]
        about = {"device": jax.devices()[0].device_kind, "devices": jax.device_count()}
        write_json(folder / "pieces.json", {**about, "blocks": work.blocks, **table.to_dict()})
    if is_writer():
        print(table.to_string(float_format="{:.4g}".format))
        print(*flags(table["seconds"].to_dict()))
    return 0


if __name__ == "__main__":
    app.run(main)
