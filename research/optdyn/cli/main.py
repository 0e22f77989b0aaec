"""The command `optdyn`: finds the command that is meant, and imports nothing of the others.

`optdyn train ...` is `python -m launch.train ...`, wherever it is called. Help is read off the
commands' files, for to import them takes long.
"""

import ast
import os
import re
import runpy
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

from optdyn.base.errors import did_you_mean, fail
from optdyn.base.streams import drop

PACKAGE = Path(__file__).parents[1]
APP = ("cli.app",)  # whose flags are those of every command with a config
DRY = ("cli.train", *APP)  # likewise of those that can say what they would take


class Command(NamedTuple):
    """A module of optdyn that is run as `__main__`, and those besides it whose flags it takes."""

    module: str
    about: str
    also: tuple[str, ...] = ()


COMMANDS = {
    "train": Command("cli.train", "one run", APP),
    "race": Command("cli.race", "one run of real workers that race", DRY),
    "sweep": Command("cli.sweep", "a grid of runs", APP),
    "report": Command("report.report", "a page of what was run"),
    "export": Command("report.export", "runs, to W&B or MLflow"),
    "tune": Command("cli.tune", "groups, momentum and learning rate, chosen in training", DRY),
    "plan": Command("cli.plan", "mini-batch, algorithms and devices to train with", DRY),
    "price": Command("cli.price", "seconds of methods on a cluster, without training", APP),
    "profile": Command("cli.profile", "what an update is made of on this machine", APP),
    "papers": Command("cli.papers", "the papers' claims, judged"),
    "local": Command("cli.local", "several processes on this machine as one job"),
    "submit": Command("cli.submit", "shards of a grid as jobs", ("cli.sweep", *APP)),
    "reality": Command("report.race", "a race of real workers, held against theory"),
    "momentum": Command("report.implicit_momentum", "implicit momentum, fitted to recordings"),
    "efficiency": Command("report.statistical_efficiency", "what staleness costs in updates"),
    "prepare": Command("problem.data.prepare", "a data set, for config.data.name=tfds"),
    "config": Command("cli.show", "a config as it is resolved, or what differs in two", APP),
    "list": Command("cli.listing", "what can be named in a config, shipped configs, keys"),
    "cite": Command("cli.cite", "BibTeX of the papers that a run used"),
    "completion": Command("cli.completion", "a script that completes commands in a shell"),
}
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
    name, *rest = argv[1:] or ["--help"]
    given = takewhile(lambda argument: argument != "--", rest)  # what follows is another command's
    asks_help = any(re.fullmatch("--?(h|help|helpshort)", argument) for argument in given)
    may_be_cut = asks_help or name in CUT or name not in COMMANDS
    try:
        with cut_off() if may_be_cut else nullcontext():
            if name in ("-h", "--help", "--helpfull", "help"):
                print(usage())
            elif name in ("-V", "--version", "version"):
                print(f"optdyn {version()}")
            elif name not in COMMANDS:
                hint = did_you_mean(name, COMMANDS) or f"; there are {', '.join(COMMANDS)}"
                fail(f"no command {name!r}{hint}")
            elif asks_help:
                print(described(name))
            else:
                sys.argv = [f"optdyn {name}", *rest]
                module = f"optdyn.{COMMANDS[name].module}"
                runpy.run_module(module, run_name="__main__", alter_sys=True)
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
    command = COMMANDS[name]
    text = re.sub(r"python -m launch\.(\w+)", r"optdyn \1", doc(command.module))
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


def version() -> str:
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed

    try:
        return installed("optdyn")
    except PackageNotFoundError:
        return "of a checkout that is not installed"


def flags_of(command: Command) -> dict[str, str]:
    """The flags of a command, with the help of each."""
    modules = (*reversed(command.also), command.module)
    return {flag: about for module in modules for flag, about in flags(module).items()}


def flags(module: str) -> dict[str, str]:
    """What a module defines by `flags.DEFINE_...` or `add_argument`: {"--name": its help}."""
    found = {}
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            name = node.func.attr
            if name.startswith("DEFINE_") or name == "add_argument":
                more = [k.value for k in node.keywords if k.arg in ("help", "help_string")]
                given = [n.value for n in (*node.args, *more) if isinstance(n, ast.Constant)]
                first, *words = [text for text in given if isinstance(text, str)]
                about = words[-1] if words else ""
                found["--" * name.startswith("DEFINE_") + first] = about
    return found


def doc(module: str) -> str:
    """The docstring of a module."""
    return ast.get_docstring(tree(module)) or ""


@cache
def tree(module: str) -> ast.Module:
    """The syntax of a module, named as it is below `optdyn`."""
    return ast.parse(PACKAGE.joinpath(*module.split(".")).with_suffix(".py").read_text())


if __name__ == "__main__":
    main()
