"""Programs of the tests that need other devices, or more processes, than the tests have."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[2]


def start(module: str, arguments: Sequence[str], launcher: Sequence[str], flags: str) -> None:
    """Runs `python -m module` to its end: by the launcher, or else with more XLA_FLAGS.

    Whatever the tests run on, on CPUs: those can be as many as a test needs.
    """
    given = os.environ.get("XLA_FLAGS", "")
    flags_of = {} if launcher else {"XLA_FLAGS": f"{given} {flags}"}
    done = subprocess.run(
        [*launcher, sys.executable, "-m", module, *arguments],
        cwd=ROOT,
        env=os.environ | {"JAX_PLATFORMS": "cpu"} | flags_of,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]


def parameters(configs, folder, *launcher, devices=8):
    """Parameters of each config, trained together in one program (or job), each below `folder`."""
    listed = folder / "configs.json"
    listed.write_text(json.dumps(configs))
    flags = f"--xla_force_host_platform_device_count={devices}"
    start("tests.devices.train_all", [str(listed), str(folder)], launcher, flags)
    return {name: np.load(folder / f"{name}.npz")["flat"] for name in configs}
