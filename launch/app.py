"""Command lines: absl flags, a config file, and one line for each thing that is wrong."""

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from absl import app, flags, logging
from ml_collections import ConfigDict, config_flags

from research.config import ConfigError
from research.data import DataError
from research.timeline import TimelineError
from research.workdir import WorkdirError

INPUT_ERRORS = (ConfigError, DataError, TimelineError, WorkdirError)


def run(main: Callable[[ConfigDict, Path], int]) -> None:
    """Calls `main(config, workdir)` with the flags' values and exits with what it returns.

    The flags are `--config=FILE`, `--config.KEY=VALUE` and `--workdir=DIR`. Bad input is one line
    on standard error and exit code 2.
    """
    config = config_flags.DEFINE_config_file("config", help_string="Config file.")
    workdir = flags.DEFINE_string("workdir", None, "Folder to write to and to resume from.")
    flags.mark_flags_as_required(["config", "workdir"])

    def guarded(_: Sequence[str]) -> int:
        if not flags.FLAGS["verbosity"].present:
            logging.set_verbosity(logging.WARNING)
        try:
            return main(config.value, Path(str(workdir.value)))
        except INPUT_ERRORS as error:
            fail(str(error))

    app.run(guarded, flags_parser=_parse)


def exit_code(summary: Mapping[str, Any]) -> int:
    """0, or 128 + the number of the signal that interrupted the run."""
    return 128 + summary["signal"] if summary["status"] == "interrupted" else 0


def fail(message: str) -> NoReturn:
    """Ends the program with one line and exit code 2."""
    print("error: " + " ".join(message.split()), file=sys.stderr, flush=True)
    sys.exit(2)


def _parse(argv: Sequence[str]) -> list[str]:
    if any(argument.startswith(("--help", "-h")) for argument in argv):
        return flags.FLAGS(argv)
    try:
        return flags.FLAGS(argv)
    except (KeyError, AttributeError) as error:
        fail("config has no key " + str(error).encode().decode("unicode_escape").strip("'\""))
    except (flags.Error, TypeError, ValueError, OSError, ImportError, SyntaxError) as error:
        fail(str(error))
