"""The options of benchmarks, programs timed in turn, and the record of a result."""

import os
import platform
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pandas as pd

from optdyn.base.files import write_json

RECORDS = Path(__file__).with_name("records")
Timer = Callable[[], float]  # seconds an update


def options(description: str | None, out: Path | str, rounds: int = 0) -> ArgumentParser:
    parser = ArgumentParser(
        description=description, formatter_class=RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--out", type=Path, default=Path(out))
    if rounds:
        parser.add_argument("--rounds", type=int, default=rounds)
    return parser


def in_turn(timers: dict[str, Timer], rounds: int) -> dict[str, np.ndarray]:
    """Returns seconds an update, (rounds,) each; a round runs all timers once, in random order."""
    for timer in timers.values():
        timer()  # compiles
    order = np.random.default_rng(0)
    seconds = {name: np.zeros(rounds) for name in timers}
    for i in range(rounds):
        for name in order.permutation(list(timers)):
            seconds[name][i] = timers[name]()
    return seconds


def spread(ratios: np.ndarray) -> dict[str, float | str]:
    low, middle, high = np.quantile(ratios, (0.25, 0.5, 0.75))
    return {"median": float(middle), "quartiles": f"{low:.3f} to {high:.3f}"}


def publish(table: pd.DataFrame, out: Path, **about: Any) -> None:
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
