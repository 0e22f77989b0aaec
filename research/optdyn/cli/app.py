"""Command lines: absl flags, a config file, and one line for each thing that is wrong."""

import ast
import re
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from absl import app, flags, logging
from ml_collections import ConfigDict, config_flags

from optdyn.base.errors import ConfigError, InputError, fail
from optdyn.base.streams import put, tell
from optdyn.cli import cache, interruptible, sources

if TYPE_CHECKING:
    from optdyn.experiment import Experiment  # whose methods need jax

NONE = "none"  # --workdir of a command that writes nothing
TYPES = {
    "boolean": "true or false",
    "float": "a number",
    "int": "a whole number",
    "a ConfigDict": "set key by key",
}
OPTION = re.compile(
    r"--?config\.(?P<of>(?:\w+\.)*(?:\w*options|method\.\w+))\.(?P<key>\w+)(=(?P<value>.*))?",
    re.S,
)
KEY = re.compile(r"--?(?:no)?config\.([^=]+)")
REQUIRED = {
    "config": ": a file, or a name that `optdyn list configs` shows",
    "workdir": ": a folder, to write to and to resume from",
}
LIBRARIES = ("absl", "orbax")  # define flags of their own
EXHAUSTED = "RESOURCE_EXHAUSTED"  # what XLA says where an allocation failed


class Option(NamedTuple):
    """An argument `--config.OF.KEY=VALUE` whose OF is a dict of options."""

    of: str
    key: str
    value: str


def run(main: Callable[[Any, Path], int], workdir: str | None = None, parsed: bool = True) -> None:
    """Calls `main(config, workdir)` with the flags' values and exits with what it returns.

    A grid stays the config that it is; of a run `main` is given the `Experiment`, if it is to be
    `parsed`.

    The flags are `--config=FILE` or `--config=NAME` of a shipped one, `--config.KEY=VALUE` and
    `--workdir=DIR`, whose default is `workdir`. Bad input is one line on standard error and exit
    code 2.
    """
    argv, options = split(sys.argv)
    config = config_flags.DEFINE_config_file("config", help_string="Config file.", sys_argv=argv)
    folder = flags.DEFINE_string("workdir", workdir, "Folder to write to and to resume from.")
    flags.mark_flags_as_required(["config", *(["workdir"] if workdir is None else [])])

    def guarded(arguments: Sequence[str]) -> int:
        quiet = not flags.FLAGS["verbosity"].present
        if quiet:
            logging.set_verbosity(logging.WARNING)
        if arguments[1:]:
            fail(f"unexpected argument {arguments[1]!r}; flags are --NAME=VALUE")
        chosen, path = config.value, config_flags.get_config_filename(flags.FLAGS["config"])
        if not isinstance(chosen, ConfigDict):
            _broken(vars(chosen).get("_error") if hasattr(chosen, "__dict__") else None, path)
            fail(f"config file {path}: its get_config() returns no ConfigDict")
        if not folder.value:
            fail("--workdir is empty; name a folder")
        for option in options:
            _set(chosen, option)
        cache.enable()
        read = path.partition(f"{sources.WRITTEN}:")[2] if parsed else ""
        return _call(main, chosen, folder.value, parsed, quiet, read)

    app.run(guarded, argv=argv, flags_parser=partial(parse, options=options))


def _call(
    main: Callable[[Any, Path], int],
    chosen: ConfigDict,
    folder: str,
    parsed: bool,
    quiet: bool,
    read: str,
) -> int:
    """What `main` returns, or the exit code of an interrupt; called as one process of the job.

    `read` is the file that the config was read from; '' of one that is Python.
    """
    # Here, for they import jax and numpy.
    from optdyn.base import lookup, processes
    from optdyn.base.files import permitted, writing
    from optdyn.base.hold import writable
    from optdyn.base.progress import end_line, say
    from optdyn.devices.first_process import verdict
    from optdyn.experiment import parse

    interruptible()
    try:
        # Not around the regular end: there the processes wait for one another.
        with processes.leaving_on_failure(), _failing(chosen):
            processes.initialize()
            processes.devices()
            # Each process saves whole states by itself. Orbax warns all but the first that there
            # are no parts of one to be merged, at every checkpoint.
            if quiet and not processes.is_writer():
                logging.set_verbosity(logging.ERROR)
            if read:
                lookup.check_read(chosen, read)
            workdir = Path(folder)
            if folder != NONE:
                verdict(lambda: writable(workdir))
            with writing(), permitted(), lookup.once():
                if parsed:
                    _settle(chosen.base if is_grid(chosen) else chosen, workdir)
                whole = not parsed or is_grid(chosen)
                return main(chosen if whole else parse(chosen), workdir)
    except KeyboardInterrupt:
        end_line()
        say("interrupted")
        return 128 + signal.SIGINT


@contextmanager
def _failing(config: ConfigDict) -> Iterator[None]:
    """Inside, bad input, a full disk and memory that runs out end the program with one line."""
    import jax  # here, for it takes long

    from optdyn.base.files import DiskFull
    from optdyn.base.progress import end_line

    try:
        yield
    except InputError as error:
        end_line()
        fail(str(error))
    except DiskFull as error:
        end_line()
        fail(str(error), code=1)
    except jax.errors.JaxRuntimeError as error:
        if EXHAUSTED not in str(error):
            raise
        end_line()
        fail(no_memory(str(error), config), code=1)


def no_memory(said: str, config: ConfigDict) -> str:
    """The line for what XLA says of an allocation that failed, with keys that take less."""
    from optdyn.problem.problem import TEXT  # here, for it imports jax

    text = (config.base if is_grid(config) else config).model.name in TEXT
    wanted = re.search(r"allocating (\d+) bytes", said)
    size = f", of {int(wanted[1]):,} bytes at once" if wanted else ""
    return (
        f"out of memory{size}; less is taken with a smaller config.batch_size"
        f"{' or config.data.sequence_length' * text}, config.parallel.accumulation, or "
        "config.model.remat"
    )


def warn(config: "Experiment") -> None:
    """A line on standard error for everything in a checked config that is hardly meant."""
    from optdyn.base.processes import is_writer
    from optdyn.train.warnings import probable_mistakes  # here, for they import jax

    given = [match[1] for argument in sys.argv[1:] if (match := KEY.match(argument))]
    for doubt in probable_mistakes(config, given) if is_writer() else ():
        put(f"warning: {doubt}\n")


def in_json() -> bool:
    """Whether `--json` was given to a command that has the flag."""
    return "json" in flags.FLAGS and bool(flags.FLAGS.json)


def ended(summary: Mapping[str, Any], workdir: Path, then: str = "report") -> int:
    """Prints how a run ended, and that the command `then` reads it; returns its exit code."""
    from optdyn.base.processes import is_writer  # here, for it imports jax
    from optdyn.cli import ending

    if is_writer():
        tell(*ending.lines(summary, workdir, then))
    return exit_code(summary)


def exit_code(summary: Mapping[str, Any]) -> int:
    """0, or 128 + the number of the signal that interrupted the run."""
    return 128 + summary["signal"] if summary["status"] == "interrupted" else 0


def is_grid(config: Any) -> bool:
    """Whether it is what `optdyn.train.grid.grid` returns."""
    return isinstance(config, ConfigDict) and "base" in config and "points" in config


def one_run(config: Any) -> None:
    """Raises `ConfigError` if a grid was given to a command that takes a run's config."""
    if is_grid(config):
        raise ConfigError(
            "the config is a grid of runs; `optdyn sweep` (python -m launch.sweep) runs its points"
        )


def many_runs(config: Any) -> None:
    """Raises `ConfigError` if a run's config was given to a command that takes a grid."""
    if not is_grid(config):
        raise ConfigError(
            "the config is one of a single run, which `optdyn train` (python -m launch.train) "
            "runs; a grid needs the keys base and points (optdyn.train.grid.grid)"
        )


def split(argv: Sequence[str]) -> tuple[list[str], list[Option]]:
    """The arguments with the path of a config file that was named, less options, and these."""
    rest: list[str] = []
    options: list[Option] = []
    left = iter(argv)
    for argument in left:
        if match := OPTION.fullmatch(argument):
            value = match["value"] if match["value"] is not None else next(left, "")
            options.append(Option(match["of"], match["key"], value))
            continue
        if re.fullmatch(r"--?config", argument):
            argument = f"{argument}={next(left, '')}"
        rest.append(_found(argument))
        if argument == "--":
            rest += left
    return rest, options


def unknown(argv: Sequence[str]) -> Iterator[str]:
    """The keys in the arguments that no config has."""
    for argument in argv:
        match = KEY.match(argument)
        if match and sources.unknown_key(match[1]):
            yield match[1]


def _found(argument: str) -> str:
    """`--config=NAME:TEXT` with the path of the file that NAME is of."""
    match = re.fullmatch(r"(--?config=)([^:]+)(:.*)?", argument, re.S)
    if not match:
        return argument
    try:
        file = sources.config_file(match[2])
        if file.suffix == ".json":
            return f"{match[1]}{sources.WRITTEN}:{file}"
        return f"{match[1]}{file}{match[3] or ''}"
    except FileNotFoundError as error:
        fail(str(error))


def _settle(asked: Any, workdir: Path) -> None:
    """Writes into a run's config the lowerings that this machine measures, if they are to be."""
    model = asked.get("model") if isinstance(asked, ConfigDict) else None
    if isinstance(model, ConfigDict) and model.get("lowering") == "measured":
        from optdyn.devices.first_process import verdict
        from optdyn.experiment import parse
        from optdyn.plan.lowered import resolved

        model.lowering = ""
        kept, plain = cache.place() / "lowerings.json", parse(asked)
        model.lowering = verdict(lambda: resolved(plain, kept, workdir))


def _set(config: ConfigDict, option: Option) -> None:
    """Sets an option to the literal that its value is, else to the text."""
    held: Any = config
    for part in option.of.split("."):
        if part not in held:
            fail(sources.no_key(f"{option.of}.{option.key}"))
        held = held[part]
    value: Any = {"true": "True", "false": "False"}.get(option.value, option.value)
    with suppress(ValueError, SyntaxError):
        value = ast.literal_eval(value)
    with held.unlocked(), held.ignore_type():
        held[option.key] = value


def parse(argv: Sequence[str], options: Sequence[Option] = ()) -> list[str]:
    """What is left of the arguments once the flags are set. What is wrong is one line."""
    if any(argument.startswith(("--help", "-h")) for argument in argv):
        return flags.FLAGS(argv)
    for option in options:
        if sources.unknown_key(f"{option.of}.{option.key}"):
            fail(sources.no_key(f"{option.of}.{option.key}"))
    try:
        return flags.FLAGS(argv)
    except flags.UnrecognizedFlagError as error:
        fail(sources.no_flag(error.flagname, _own_flags()))
    except Exception as error:
        path = next((a.partition("=")[2] for a in argv if re.match(r"--?config=", a)), "")
        _broken(error, path)
        for name in unknown(argv):
            fail(sources.no_key(name))
        if isinstance(error, (KeyError, AttributeError)):
            _misplaced(argv, str(error))
        if left_out := re.match(r"flag --(\w+)=None: .* must have a value", str(error)):
            fail(f"--{left_out[1]} is required{REQUIRED.get(left_out[1], '')}")
        if typed := re.match(r"flag (--config\.[^=]+)=", str(error)):
            given = [a for a in argv if a.startswith(f"{typed[1]}=")]
            _wrong_type(given[-1] if given else typed[1], str(error))
        given_wrong = (flags.Error, KeyError, AttributeError, TypeError, ValueError, OSError)
        if isinstance(error, given_wrong):
            inner = error.args[0] if error.args else error
            fail(str(inner.args[0] if isinstance(inner, KeyError) else inner))
        raise


def _own_flags() -> list[str]:
    """Names of the flags that a command has of ours, without those of keys."""
    modules = flags.FLAGS.flags_by_module_dict().items()
    own = [its for module, its in modules if module.partition(".")[0] not in LIBRARIES]
    return [flag.name for its in own for flag in its if "." not in flag.name]


def _broken(error: BaseException | None, path: str) -> None:
    """Fails with file and line if the error, or what it came of, was raised in a config's file."""
    name = path if Path(path).is_file() else path.partition(":")[0]
    while error:
        if isinstance(error, SyntaxError) and Path(error.filename or "").is_file():
            fail(f"{_near(error.filename or name)}:{error.lineno}: SyntaxError: {error.msg}")
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if _same(frame.filename, name)]
        if lines and isinstance(error, InputError):
            fail(str(error))
        if lines:
            what = error.args[0] if isinstance(error, KeyError) and error.args else error
            said = repr(what) if isinstance(what, str) and " " not in what else str(what)
            fail(f"{_near(name)}:{lines[-1]}: {type(error).__name__}: {said}")
        if isinstance(error, AttributeError) and "get_config" in str(error):
            fail(f"{_near(name)}: has no attribute 'get_config'; it must be a function")
        if isinstance(error, TypeError) and str(error).startswith("get_config() "):
            fail(f"{_near(name)}: {error}; it is given what follows a colon, --config=FILE:TEXT")
        error = error.__cause__ or error.__context__


def _misplaced(argv: Sequence[str], said: str) -> None:
    """Fails if a key of a run was given to a grid, or one of a grid's base to a run."""
    for name in (match[1] for argument in argv if (match := KEY.match(argument))):
        if name.startswith("base.") and "base" in said:
            fail(f"config has no key {name!r}; that of a run has {name.removeprefix('base.')!r}")
        if re.search(rf"\b{re.escape(name.partition('.')[0])}\b", said):
            fail(f"config has no key {name!r}; that of a grid has {'base.' + name!r}")


def _wrong_type(given: str, said: str) -> NoReturn:
    """Says which type is wanted, as absl says which of Python's functions could not read it."""
    said = said.removeprefix(f"flag {given}: ")
    key, _, value = given.partition("=")
    known = sources.keys()
    if f"{key}.name".removeprefix("--config.") in known:
        fail(f"{given}: has keys of its own; did you mean {key}.name={value}?")
    wanted = [text for name, text in TYPES.items() if f" {name}" in said]
    fail(f"{given}: must be {wanted[0]}" if wanted else f"{given}: {said}")


def _same(one: str, other: str) -> bool:
    return bool(other) and Path(one).resolve() == Path(other).resolve()


def _near(path: str) -> str:
    """The path from here, if it lies below."""
    with suppress(ValueError):
        return str(Path(path).resolve().relative_to(Path.cwd()))
    return path
