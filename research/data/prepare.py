"""Prepares a TFDS data set for 'tfds:NAME', on a machine with a network (and TensorFlow for most).

    python -m research.data.prepare NAME[/CONFIG][:VERSION] [--data_dir=DIR]

Ends with one line: what is ready and where, or what is in the way (exit status 1).
"""

import argparse
import http.client
import sys
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

from research.data import text
from research.data.arrays import DataError, arrays, one_line
from research.data.loading import data_root

PATIENCE = 10  # seconds for a first answer; TFDS itself retries for minutes


def prepare(spec: str, data_dir: str | None = None) -> str:
    """Downloads the data set, prepares it as array_record and decodes images; a line that says so.

    Raises DataError: TFDS has no such data set, it cannot be downloaded, or it cannot be used.
    """
    import tensorflow_datasets as tfds
    from tensorflow_datasets.core.download.download_manager import NonMatchingChecksumError
    from tensorflow_datasets.core.download.util import DownloadError

    root = data_root(data_dir)
    try:
        builder = tfds.builder(spec, data_dir=root, file_format="array_record")
    except (ValueError, AssertionError, ImportError) as error:
        raise DataError(f"TFDS cannot make {spec!r}: {one_line(error)}") from error
    try:
        if not builder.data_path.exists():
            for url in list(builder.url_infos or ())[:1]:
                _reach(url)
            builder.download_and_prepare(file_format="array_record")
    except ImportError as error:
        raise DataError(
            f"preparing {spec!r} needs a package that is not here: {one_line(error)}"
        ) from error
    except (OSError, AssertionError, DownloadError, NonMatchingChecksumError) as error:
        raise DataError(f"cannot prepare {spec!r} under {root}: {one_line(error)}") from error
    folder = Path(builder.data_dir)
    ready = f"tfds:{spec} is ready under {folder}:"
    if feature := text.feature(folder):
        first, second = text.sources(folder)
        return f"{ready} {len(first):,} + {len(second):,} examples of text, {feature!r}"
    data = arrays(folder)
    train, test = data.train["image"], data.test["image"]
    return (
        f"{ready} {len(train):,} + {len(test):,} images {train.shape[1:]}, {data.classes} classes"
    )


def _reach(url: str) -> None:
    """Raises OSError unless the host of `url` gives some answer, through a proxy if one is set."""
    try:
        urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=PATIENCE).close()
    except urllib.error.HTTPError:
        return
    except (OSError, http.client.HTTPException) as error:
        host = urllib.parse.urlsplit(url).hostname
        raise OSError(f"no answer from {host} ({one_line(error)}); is there a network?") from error


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m research.data.prepare", description="Prepares a TFDS data set."
    )
    parser.add_argument("spec", metavar="NAME[/CONFIG][:VERSION]")
    parser.add_argument("--data_dir", help="default: $OPTDYN_DATA_DIR, or that of TFDS")
    arguments = parser.parse_args()
    try:
        print(prepare(arguments.spec.removeprefix("tfds:"), arguments.data_dir))
    except DataError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
