"""Command lines: absl flags, a config file, and one line for each thing that is wrong."""

import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from absl import app, flags, logging
from ml_collections import ConfigDict, config_flags

from research.outputs.files import DiskFull, writing
from research.parallel import processes
from research.values import InputError


def run(main: Callable[[ConfigDict, Path], int]) -> None:
    """Calls `main(config, workdir)` with the flags' values and exits with what it returns.

    The flags are `--config=FILE`, `--config.KEY=VALUE` and `--workdir=DIR`. Bad input is one line
    on standard error and exit code 2.
    """
    config = config_flags.DEFINE_config_file("config", help_string="Config file.")
    workdir = flags.DEFINE_string("workdir", None, "Folder to write to and to resume from.")
    flags.mark_flags_as_required(["config", "workdir"])

    def guarded(arguments: Sequence[str]) -> int:
        if not flags.FLAGS["verbosity"].present:
            logging.set_verbosity(logging.WARNING)
        if arguments[1:]:
            fail(f"unexpected argument {arguments[1]!r}; flags are --NAME=VALUE")
        if not isinstance(config.value, ConfigDict):
            path = config_flags.get_config_filename(flags.FLAGS["config"])
            fail(f"config file {path}: not found, or its get_config() returns no ConfigDict")
        if not workdir.value:
            fail("--workdir is empty; name a folder")
        try:
            # Not around the regular end: there the processes wait for one another.
            with processes.leaving_on_failure():
                try:
                    processes.initialize()
                    with writing():
                        return main(config.value, Path(workdir.value))
                except InputError as error:
                    fail(str(error))
                except DiskFull as error:
                    fail(str(error), code=1)
        except KeyboardInterrupt:
            return 128 + signal.SIGINT

    app.run(guarded, flags_parser=_parse)


def exit_code(summary: Mapping[str, Any]) -> int:
    """0, or 128 + the number of the signal that interrupted the run."""
    return 128 + summary["signal"] if summary["status"] == "interrupted" else 0


def fail(message: str, code: int = 2) -> NoReturn:
    """Ends the program with one line and that exit code: 2 is of what was given."""
    print("error: " + " ".join(message.split()), file=sys.stderr, flush=True)
    sys.exit(code)


def _parse(argv: Sequence[str]) -> list[str]:
    if any(argument.startswith(("--help", "-h")) for argument in argv):
        return flags.FLAGS(argv)
    try:
        return flags.FLAGS(argv)
    except (KeyError, AttributeError) as error:
        inner = error.args[0] if isinstance(error.args[0], KeyError) else error
        fail(f"config has no key {inner.args[0]}" if isinstance(inner, KeyError) else str(inner))
    except (flags.Error, TypeError, ValueError, NameError, ImportError, SyntaxError) as error:
        fail(str(error))
