"""Command lines with a config file: absl flags, config keys, and errors in one line."""

import re
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from absl import app, flags, logging

from optdyn.base.errors import ConfigError, InputError, did_you_mean, fail
from optdyn.base.streams import put
from optdyn.cli import cache, configs, interruptible

if TYPE_CHECKING:
    from optdyn.experiment import Config  # whose methods need jax
    from optdyn.train.grid import Grid

NO_WORKDIR = "none"  # --workdir of a command that writes nothing
KEY = re.compile(r"--?(no)?config\.([^=]+?)(?:=(.*))?", re.S)
REQUIRED = {
    "config": ": a file, or a name that `optdyn list configs` shows",
    "workdir": ": a folder, to write to and to resume from",
}
LIBRARIES = ("absl", "orbax")  # define flags of their own
GRID_NEEDED = "a grid of runs; `optdyn sweep` (python -m launch.sweep) runs its points"
RUN_NEEDED = (
    "one of a single run, which `optdyn train` (python -m launch.train) runs; a grid is a "
    "Grid(base, points) of optdyn.train.grid"
)
OUT_OF_MEMORY = "RESOURCE_EXHAUSTED"  # what XLA says where an allocation failed


def run(main: Callable[[Any, Path], int], workdir: str | None = None) -> None:
    """Calls `main(config, workdir)` with the values of the flags and exits with its result.

    `config` is an `Experiment` or a `Grid`; `workdir` is the default of `--workdir=DIR`. Bad input
    is one line on standard error and exit code 2.
    """
    name = flags.DEFINE_string("config", None, "Config file, or the name of a shipped one.")
    folder = flags.DEFINE_string("workdir", workdir, "Folder to write to and to resume from.")
    flags.mark_flags_as_required(["config", *(["workdir"] if workdir is None else [])])
    with _reading_flags():
        argv, changes = split_keys(flags.FLAGS.read_flags_from_files(sys.argv, force_gnu=False))

    def guarded(arguments: Sequence[str]) -> int:
        quiet = not flags.FLAGS["verbosity"].present
        if quiet:
            logging.set_verbosity(logging.WARNING)
        if arguments[1:]:
            fail(f"unexpected argument {arguments[1]!r}; flags are --NAME=VALUE")
        if not folder.value:
            fail("--workdir is empty; name a folder")
        cache.enable()
        # Here, for they import jax and numpy.
        from optdyn.base import lookup, processes
        from optdyn.base.fields import Text
        from optdyn.base.files import disk_full_errors, permission_errors
        from optdyn.base.progress import end_line, say
        from optdyn.base.workdir_lock import check_writable
        from optdyn.devices.first_process import run_on_first

        interruptible()
        try:
            # Not around the regular end, where the processes wait for one another.
            with processes.leaving_on_failure(), one_line_errors():
                processes.initialize()
                processes.devices()
                # Processes save whole states, so Orbax would warn all but the first at all
                # checkpoints that there are no parts to merge.
                if quiet and not processes.is_writer():
                    logging.set_verbosity(logging.ERROR)
                with lookup.files_read_once():
                    texts = {key: Text(value) for key, value in changes.items()}
                    config = configs.config(str(name.value), texts)
                    workdir = Path(folder.value)
                    if folder.value != NO_WORKDIR:
                        run_on_first(lambda: check_writable(workdir))
                    with disk_full_errors(), permission_errors():
                        return main(_with_measured_lowerings(config, workdir), workdir)
        except KeyboardInterrupt:
            end_line()
            say("interrupted")
            return 128 + signal.SIGINT

    app.run(guarded, argv=argv, flags_parser=parse_flags)


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Inside, bad input, a full disk and a lack of memory end the program with one line."""
    import jax  # here, for it takes long

    from optdyn.base.files import DiskFull
    from optdyn.base.progress import end_line

    try:
        yield
    except (InputError, DiskFull, jax.errors.JaxRuntimeError) as error:
        line = str(error)
        if isinstance(error, jax.errors.JaxRuntimeError):
            if OUT_OF_MEMORY not in line:
                raise
            match = re.search(r"allocating (\d+) bytes", line)
            size = f", of {int(match[1]):,} bytes at once" if match else ""
            line = (
                f"out of memory{size}; less is taken with a smaller config.batch_size (of text "
                "config.data.sequence_length), config.parallel.accumulation, or config.model.remat"
            )
        end_line()
        fail(line, code=2 if isinstance(error, InputError) else 1)


def warn(config: "Config") -> None:
    """Prints a line on standard error for every probable mistake in a checked config."""
    from optdyn.base.processes import is_writer
    from optdyn.train.warnings import probable_mistakes  # here, for they import jax

    changes = split_keys(sys.argv)[1]
    for doubt in probable_mistakes(config, changes) if is_writer() else ():
        put(f"warning: {doubt}\n")


def in_json() -> bool:
    return "json" in flags.FLAGS and bool(flags.FLAGS.json)


def check_kind(config: "Config | Grid", is_grid: bool = False) -> None:
    """Raises `ConfigError` unless the config is a grid, or with `is_grid` False a single run."""
    if hasattr(config, "points") != is_grid:
        raise ConfigError(f"the config is {RUN_NEEDED if is_grid else GRID_NEEDED}")


def split_keys(argv: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Returns the other arguments, and the values of `--config.KEY=VALUE` or `... VALUE`.

    `--config.KEY` without a value is true, and `--noconfig.KEY` false.
    """
    rest, changes, left = list[str](), dict[str, str](), list(argv)
    while left:
        argument = left.pop(0)
        if argument == "--":
            return [*rest, argument, *left], changes
        if not (match := KEY.fullmatch(argument)):
            rest.append(argument)
            continue
        no, key, value = match.groups()
        if value is None:
            follows = not no and left and not left[0].startswith("--")
            value = left.pop(0) if follows else "false" if no else "true"
        changes[key] = value
    return rest, changes


def _with_measured_lowerings(config: Any, workdir: Path) -> Any:
    """Returns the config with 'measured' replaced by the lowerings that are fastest here."""
    run = getattr(config, "base", config)
    if run.model.lowering != "measured":
        return config
    from optdyn.devices.first_process import run_on_first
    from optdyn.plan.lowered import resolved

    store, plain = cache.place() / "lowerings.json", run.with_({"model.lowering": ""})
    lowering = run_on_first(lambda: resolved(plain, store, workdir))
    key = "base.model.lowering" if run is not config else "model.lowering"
    return config.with_({key: lowering})


def parse_flags(argv: Sequence[str]) -> list[str]:
    with _reading_flags():
        return flags.FLAGS(argv)


@contextmanager
def _reading_flags() -> Iterator[None]:
    try:
        yield
    except flags.Error as error:
        line = str(error).removeprefix("ERROR:: ")
        if isinstance(error, flags.UnrecognizedFlagError):
            line = _no_flag(error.flagname)
        elif missing := re.match(r"flag --(\w+)=None: .* must have a value", line):
            line = f"--{missing[1]} is required{REQUIRED.get(missing[1], '')}"
        fail(line)


def _no_flag(name: str) -> str:
    modules = flags.FLAGS.flags_by_module_dict().items()
    ordered = sorted(modules, key=lambda item: item[0] != __name__)  # flags of all commands first
    ours = [group for module, group in ordered if module.partition(".")[0] not in LIBRARIES]
    known = [f"--{flag.name}" for group in ours for flag in group]
    keys: Mapping[str, Any] = {}
    if "--config" in known:
        from optdyn.cli.keys import keys as keys_of

        keys = keys_of()
    above, _, last = name.rpartition(".")
    is_free = last and above in keys and isinstance(keys[above][1], dict)  # --data.options.size=1
    if f"{name}.name" in keys:  # --model=cnn
        hint = f"; did you mean --config.{name}.name?"
    elif name in keys or is_free:
        hint = f"; did you mean --config.{name}?"
    else:
        hint = did_you_mean(name, known) or did_you_mean(
            name, [*known, *(f"--config.{key}" for key in keys)]
        )
        hint = hint or f"; there are {', '.join(known)}"
    return f"Unknown command line flag {name!r}{hint}"
