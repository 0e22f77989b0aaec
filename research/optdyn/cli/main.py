"""The command `optdyn`: finds the command that is meant, and imports nothing of the others.

`optdyn train ...` is `python -m launch.train ...`, wherever it is called.
"""

import os
import re
import runpy
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext

from optdyn.base.errors import fail, meant
from optdyn.base.streams import drop
from optdyn.cli import sources
from optdyn.cli.commands import COMMANDS, Command

# These may be cut off, as by `| head`: they have written all their files before they print.
CUT = (
    *("list", "config", "cite", "completion"),
    *("reality", "momentum", "efficiency"),
    *("plan", "price", "profile", "report"),
)


def main() -> None:
    """Runs the command that `sys.argv` names; the process is afterwards as it was before."""
    argv, path = sys.argv, list(sys.path)
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # last: own modules are found, and none of ours is hidden
    try:
        with cut_off() if argv[1:2] and argv[1] in CUT else nullcontext():
            _run(argv)
    finally:
        sys.argv, sys.path[:] = argv, path


def run(command: str) -> None:
    """Runs a command with the arguments of this program, as `python -m launch.COMMAND` does."""
    sys.argv[:] = ["optdyn", command, *sys.argv[1:]]
    main()


@contextmanager
def cut_off() -> Iterator[None]:
    """Ends the command without a word where nobody reads what it prints any more."""
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        drop()
        sys.exit(128 + signal.SIGPIPE)


def _say(text: str) -> None:
    with cut_off():
        print(text)


def _run(argv: Sequence[str]) -> None:
    name, *rest = argv[1:] or ["--help"]
    if name in ("-h", "--help", "--helpfull", "help"):
        _say(usage())
    elif name in ("-V", "--version", "version"):
        _say(f"optdyn {version()}")
    elif name not in COMMANDS:
        hint = meant(name, COMMANDS) or f"; there are {', '.join(COMMANDS)}"
        fail(f"no command {name!r}{hint}")
    elif any(re.fullmatch("--?(h|help|helpshort)", argument) for argument in before(rest)):
        _say(described(name))
    else:
        sys.argv = [f"optdyn {name}", *rest]
        runpy.run_module(f"optdyn.{COMMANDS[name].module}", run_name="__main__", alter_sys=True)


def usage() -> str:
    """What `optdyn --help` prints."""
    width = max(map(len, COMMANDS))
    lines = [f"  {name:{width}}  {command.about}" for name, command in COMMANDS.items()]
    return "\n".join(
        [
            "usage: optdyn COMMAND [--NAME=VALUE ...]",
            "",
            *lines,
            "",
            "optdyn COMMAND --help explains a command, optdyn --version says which this is.",
            "To begin with: optdyn train --config=quickstart --workdir=workdirs/first",
        ]
    )


def described(name: str) -> str:
    """What `optdyn COMMAND --help` prints: the module's words and its flags."""
    command, text = COMMANDS[name], sources.doc(COMMANDS[name].module)
    text = re.sub(r"python -m launch\.(\w+)", r"optdyn \1", text)
    given = flags_of(command)
    width = max(map(len, given), default=0)
    lines = [text, "", *(f"  {flag:{width}}  {about}".rstrip() for flag, about in given.items())]
    if command.also:
        lines += [
            "",
            "--config takes a file, or a name that `optdyn list configs` shows; what follows a",
            "colon goes to the config, as in --config=images:fashion_mnist. The config.json of a",
            "run is a config too. --config.KEY=VALUE sets a key: `optdyn list keys [PREFIX]` shows",
            "them all, with their defaults.",
            f"optdyn {name} --helpfull has the flags of all libraries too.",
        ]
    return "\n".join(lines)


def flags_of(command: Command) -> dict[str, str]:
    """The flags of a command, with the help of each."""
    modules = (*reversed(command.also), command.module)
    return {flag: about for module in modules for flag, about in sources.flags(module).items()}


def before(arguments: Sequence[str]) -> list[str]:
    """The arguments before two dashes, which end those of this command."""
    every = list(arguments)
    return every[: every.index("--")] if "--" in every else every


def version() -> str:
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed

    try:
        return installed("optdyn")
    except PackageNotFoundError:
        return "of a checkout that is not installed"


if __name__ == "__main__":
    main()
