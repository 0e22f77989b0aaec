"""Data of a name in one line: `load("tfds:tiny", folder, sequence_length=3)`."""

from optdyn.problem.data.kinds import MNIST5k

KEYS = {"tfds": "dataset", "folder": "path", "text": "path"}


def load(name, folder="", **values):
    """The examples of `config.data`, of this name, of the data in a folder and of these keys."""
    kind, _, rest = name.partition(":")
    named = {"name": kind, KEYS[kind]: rest} if kind in KEYS else {"name": name}
    return MNIST5k().changed({"dir": str(folder), **named, **values}).load()
