"""The sources and documents of the installed Python packages: a text of 100 MB and more.

    optdyn prepare packages

writes them as two files of text, which runs then read, so that a text stays what it is when
packages change. It takes those of all distributions that this Python finds, in the alphabetical
order of their names and then of their files, each text once; every twentieth file is held out. What
the set-up of this project installs has 174 MB (20,000 files). `packages.json` says which versions
it was made of.
"""

import hashlib
import json
import re
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from optdyn.base.files import write
from optdyn.problem.data.arrays import DataError
from optdyn.problem.data.stdlib import held_out

FOLDER = "packages"
SUFFIXES = (".py", ".pyi", ".pyx", ".pxd", ".md", ".rst")
OURS = "optdyn"


def names() -> dict[str, metadata.Distribution]:
    """What is installed, by its normalized name, in order; the first that is found of several."""
    found: dict[str, metadata.Distribution] = {}
    for each in metadata.distributions():
        found.setdefault(re.sub(r"[-_.]+", "-", each.name).lower(), each)
    return {name: found[name] for name in sorted(found) if name != OURS}


def texts(distributions: dict[str, metadata.Distribution]) -> Iterator[str]:
    """Every text of theirs once: those in UTF-8 that are there."""
    seen = set()
    for each in distributions.values():
        for name in sorted(str(path) for path in each.files or () if path.suffix in SUFFIXES):
            try:
                content = Path(str(each.locate_file(name))).read_bytes()
                text = content.decode()
            except (OSError, UnicodeDecodeError):
                continue
            key = hashlib.sha256(content).digest()
            if text and key not in seen:
                seen.add(key)
                yield text if text.endswith("\n") else text + "\n"


def prepare(root: Path) -> Path:
    """The folder of the texts below `root`, made unless they are there. Raises DataError."""
    folder = root / FOLDER
    if is_prepared(folder):
        return folder
    found = names()
    every = list(texts(found))
    few = f"the packages of this Python have {len(every)} texts: too few to hold out"
    train, test = held_out(every, few)
    with DataError.at(f"cannot write {folder}", OSError):
        folder.mkdir(parents=True, exist_ok=True)
        write(folder / "test.txt", test)
        write(folder / "train.txt", train)
        versions = {name: each.version for name, each in found.items()}
        write(folder / "packages.json", json.dumps(versions, indent=1) + "\n")  # last: all is there
    return folder


def is_prepared(folder: Path) -> bool:
    """Whether the texts lie in the folder."""
    return (folder / "packages.json").is_file()


def split(root: Path) -> tuple[str, str]:
    """The texts to train on and held out. Raises DataError where they have not been prepared."""
    folder = root / FOLDER
    if not is_prepared(folder):
        raise DataError(
            f"data set 'packages' is not prepared under {folder}; to prepare it, once: "
            f"optdyn prepare packages --data_dir={root}"
        )
    with DataError.at(f"cannot read the texts in {folder}", OSError, UnicodeDecodeError):
        train, test = ((folder / f"{name}.txt").read_bytes().decode() for name in ("train", "test"))
    return train, test
