"""JAX's cache of compiled programs on disk, so that the second start of a run compiles nothing."""

import os
import re
import warnings
import zlib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

SIZE = 2**30  # bytes; the least recently used programs go first
CPU = Path("/proc/cpuinfo")
DIR = "jax_compilation_cache_dir"
SET, SWITCH = "JAX_COMPILATION_CACHE_DIR", "JAX_ENABLE_COMPILATION_CACHE"


def enable() -> None:
    """Sets JAX's cache to `folder`, unless the environment sets it or the folder is not usable."""
    import jax  # here, for it takes long

    if SET in os.environ or SWITCH in os.environ or getattr(jax.config, DIR):
        return
    path = place()
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError:
        return
    if not os.access(path, os.W_OK):
        return
    # JAX warns of an entry that it cannot read or write, and compiles.
    warnings.filterwarnings("ignore", message="Error (read|writ)ing persistent compilation cache")
    for name, value in {
        DIR: str(path),
        "jax_compilation_cache_max_size": SIZE,
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }.items():
        jax.config.update(name, value)


def place() -> Path:
    import jax

    return folder(os.environ, jax.__version__, jax.lib.__version__)


def folder(environ: Mapping[str, str], *versions: str) -> Path:
    """Returns the cache folder of these versions and of the instruction set of this CPU."""
    text = ""
    with suppress(OSError):
        text = CPU.read_text()
    # A program that was compiled for the features of another CPU may end in a fault.
    features = re.search(r"^(?:flags|Features)\s*:(.*)$", text, re.M)
    cpu = zlib.crc32(" ".join(sorted(features[1].split() if features else [])).encode())
    home = environ.get("XDG_CACHE_HOME") or Path(os.path.expanduser("~")) / ".cache"
    return Path(home) / "optdyn" / "-".join(["jax", *versions, f"cpu{cpu:08x}"])
