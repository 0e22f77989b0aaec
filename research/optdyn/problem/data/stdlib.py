"""The sources of Python's standard library: 10 MB of text that is there wherever Python is.

The modules of `sys.stdlib_module_names` in alphabetical order, packages file by file, without their
tests and without what some distributions leave out. They differ between versions of Python: 3.11.7
has 506 files of 9.8 MB. A run says its version of Python in `summary.json`.
"""

import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from optdyn.problem.data.arrays import DataError

OPTIONAL = ("distutils", "ensurepip", "idlelib", "lib2to3", "tkinter", "turtle", "turtledemo")
TESTS = {"test", "tests", "idle_test"}
EVERY = 20  # the last of so many files in a row is held out


def files(root: Path) -> Iterator[Path]:
    """The sources below the folder of the standard library, in order."""
    for name in sorted(sys.stdlib_module_names.difference(OPTIONAL)):
        module = root / f"{name}.py"
        if module.is_file():
            yield module
        for path in sorted((root / name).rglob("*.py")):
            if not TESTS & {*path.relative_to(root).parts}:
                yield path


def split() -> tuple[str, str]:
    """The texts to train on and held out, 19 of 20 files and the last of each 20. DataError."""
    root = Path(sysconfig.get_path("stdlib"))
    with DataError.at(f"cannot read the standard library in {root}", OSError, UnicodeDecodeError):
        texts = [path.read_text("utf-8") for path in files(root)]
    few = f"'stdlib' needs Python's standard library as sources: {root} has {len(texts)} files"
    return held_out(texts, few)


def held_out(texts: list[str], few: str) -> tuple[str, str]:
    """19 of 20 texts and the last of each 20. Raises DataError, `few`, where there are fewer."""
    if len(texts) < EVERY:
        raise DataError(few)
    test = "".join(texts[EVERY - 1 :: EVERY])
    del texts[EVERY - 1 :: EVERY]
    return "".join(texts), test
