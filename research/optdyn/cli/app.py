"""Command lines: absl flags, a config file, and one line for each thing that is wrong."""

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

NONE = "none"  # --workdir of a command that writes nothing
KEY = re.compile(r"--?(no)?config\.([^=]+?)(?:=(.*))?", re.S)
REQUIRED = {
    "config": ": a file, or a name that `optdyn list configs` shows",
    "workdir": ": a folder, to write to and to resume from",
}
LIBRARIES = ("absl", "orbax")  # define flags of their own
A_GRID = "a grid of runs; `optdyn sweep` (python -m launch.sweep) runs its points"
A_RUN = (
    "one of a single run, which `optdyn train` (python -m launch.train) runs; a grid is a "
    "Grid(base, points) of optdyn.train.grid"
)
EXHAUSTED = "RESOURCE_EXHAUSTED"  # what XLA says where an allocation failed


def run(main: Callable[[Any, Path], int], workdir: str | None = None) -> None:
    """Calls `main(config, workdir)` with the flags' values and exits with what it returns.

    `config` is the `Config`, or the `Grid`, of `--config=FILE` or `--config=NAME`, a shipped
    one, with the values of `--config.KEY=VALUE`. `--workdir=DIR` has the default `workdir`. Bad
    input is one line on standard error and exit code 2.
    """
    name = flags.DEFINE_string("config", None, "Config file, or the name of a shipped one.")
    folder = flags.DEFINE_string("workdir", workdir, "Folder to write to and to resume from.")
    flags.mark_flags_as_required(["config", *(["workdir"] if workdir is None else [])])
    with _reading_flags():
        argv, changes = split(flags.FLAGS.read_flags_from_files(sys.argv, force_gnu=False))

    def guarded(arguments: Sequence[str]) -> int:
        quiet = not flags.FLAGS["verbosity"].present
        if quiet:
            logging.set_verbosity(logging.WARNING)
        if arguments[1:]:
            fail(f"unexpected argument {arguments[1]!r}; flags are --NAME=VALUE")
        if not folder.value:
            fail("--workdir is empty; name a folder")
        cache.enable()
        return _call(main, str(name.value), changes, folder.value, quiet)

    app.run(guarded, argv=argv, flags_parser=parse)


def _call(
    main: Callable[[Any, Path], int],
    name: str,
    changes: Mapping[str, str],
    folder: str,
    quiet: bool,
) -> int:
    """What `main` returns, or the exit code of an interrupt; called as one process of the job."""
    # Here, for they import jax and numpy.
    from optdyn.base import lookup, processes
    from optdyn.base.fields import Text
    from optdyn.base.files import disk_full_errors, permission_errors
    from optdyn.base.progress import end_line, say
    from optdyn.base.workdir_lock import check_writable
    from optdyn.devices.first_process import run_on_first

    interruptible()
    try:
        # Not around the regular end: there the processes wait for one another.
        with processes.leaving_on_failure(), failing():
            processes.initialize()
            processes.devices()
            # Each process saves whole states by itself. Orbax warns all but the first that there
            # are no parts of one to be merged, at every checkpoint.
            if quiet and not processes.is_writer():
                logging.set_verbosity(logging.ERROR)
            with lookup.files_read_once():
                asked = {key: Text(value) for key, value in changes.items()}
                config = configs.config(name, asked)
                workdir = Path(folder)
                if folder != NONE:
                    run_on_first(lambda: check_writable(workdir))
                with disk_full_errors(), permission_errors():
                    return main(_settled(config, workdir), workdir)
    except KeyboardInterrupt:
        end_line()
        say("interrupted")
        return 128 + signal.SIGINT


@contextmanager
def failing() -> Iterator[None]:
    """Inside, bad input, a full disk and memory that runs out end the program with one line."""
    import jax  # here, for it takes long

    from optdyn.base.files import DiskFull
    from optdyn.base.progress import end_line

    try:
        yield
    except (InputError, DiskFull, jax.errors.JaxRuntimeError) as error:
        said = str(error)
        if isinstance(error, jax.errors.JaxRuntimeError):
            if EXHAUSTED not in said:
                raise
            wanted = re.search(r"allocating (\d+) bytes", said)
            size = f", of {int(wanted[1]):,} bytes at once" if wanted else ""
            said = (
                f"out of memory{size}; less is taken with a smaller config.batch_size (of text "
                "config.data.sequence_length), config.parallel.accumulation, or config.model.remat"
            )
        end_line()
        fail(said, code=2 if isinstance(error, InputError) else 1)


def warn(config: "Config") -> None:
    """A line on standard error for everything in a checked config that is hardly meant."""
    from optdyn.base.processes import is_writer
    from optdyn.train.warnings import probable_mistakes  # here, for they import jax

    given = split(sys.argv)[1]
    for doubt in probable_mistakes(config, given) if is_writer() else ():
        put(f"warning: {doubt}\n")


def in_json() -> bool:
    """Whether `--json` was given to a command that has the flag."""
    return "json" in flags.FLAGS and bool(flags.FLAGS.json)


def check_kind(config: "Config | Grid", is_grid: bool = False) -> None:
    """Raises `ConfigError` if a grid was given to a command that takes a run, or a run for a grid.

    `is_grid`: whether the command takes a grid.
    """
    if hasattr(config, "points") != is_grid:
        raise ConfigError(f"the config is {A_RUN if is_grid else A_GRID}")


def split(argv: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """The arguments without those of keys, and these: `--config.KEY=VALUE` or `--config.KEY VALUE`.

    `--config.KEY` alone is true, and `--noconfig.KEY` false.
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


def _settled(config: Any, workdir: Path) -> Any:
    """The config with the lowerings that this machine measures, if they are to be measured."""
    run = getattr(config, "base", config)
    if run.model.lowering != "measured":
        return config
    from optdyn.devices.first_process import run_on_first
    from optdyn.plan.lowered import resolved

    kept, plain = cache.place() / "lowerings.json", run.with_({"model.lowering": ""})
    lowering = run_on_first(lambda: resolved(plain, kept, workdir))
    key = "base.model.lowering" if run is not config else "model.lowering"
    return config.with_({key: lowering})


def parse(argv: Sequence[str]) -> list[str]:
    """What is left of the arguments once the flags are set. What is wrong is one line."""
    with _reading_flags():
        return flags.FLAGS(argv)


@contextmanager
def _reading_flags() -> Iterator[None]:
    """Inside, an error of absl's ends the program with one line."""
    try:
        yield
    except flags.Error as error:
        said = str(error).removeprefix("ERROR:: ")
        if isinstance(error, flags.UnrecognizedFlagError):
            said = _no_flag(error.flagname)
        elif left_out := re.match(r"flag --(\w+)=None: .* must have a value", said):
            said = f"--{left_out[1]} is required{REQUIRED.get(left_out[1], '')}"
        fail(said)


def _no_flag(name: str) -> str:
    """A line on a flag that there is not, and may be meant to be another or a key."""
    every = flags.FLAGS.flags_by_module_dict().items()
    modules = sorted(every, key=lambda named: named[0] != __name__)  # those of all commands first
    own = [its for module, its in modules if module.partition(".")[0] not in LIBRARIES]
    known = [f"--{flag.name}" for its in own for flag in its]
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
