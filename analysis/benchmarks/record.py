"""How every benchmark says what it found: a table to read, and JSON with what it was run on."""

import os
import platform
from pathlib import Path
from typing import Any

import jax
import pandas as pd

from optdyn.base.files import write_json


def publish(table: pd.DataFrame, out: Path, **about: Any) -> None:
    """Prints the table and writes it to `out`, with the machine, versions and `about`."""
    print(table.to_string(index=False, float_format="{:.3f}".format))
    record = {
        "device": jax.devices()[0].device_kind,
        "cores": os.cpu_count(),
        "load_after": os.getloadavg()[0],  # what else the machine is doing
        "python": platform.python_version(),
        "jax": jax.__version__,
        **about,
        "ratios": table.to_dict("records"),
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    write_json(out, record)
