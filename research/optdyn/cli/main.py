"""The command `optdyn`: runs one command's module without importing the others.

Help comes from the syntax trees of the commands' files, for importing them takes long.
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
APP = ("cli.app",)  # defines the flags of commands with a config
DRY = ("cli.train", *APP)  # defines those of commands with --dry_run


class Command(NamedTuple):
    module: str
    about: str
    also: tuple[str, ...] = ()


COMMANDS = {
    "train": Command("cli.train", "train one run", APP),
    "race": Command("cli.race", "train with real workers that race", DRY),
    "sweep": Command("cli.sweep", "train a grid of runs", APP),
    "report": Command("report.report", "write a page on runs"),
    "export": Command("report.export", "export runs to W&B or MLflow"),
    "tune": Command("cli.tune", "tune groups, momentum and learning rate during training", DRY),
    "plan": Command("cli.plan", "plan mini-batch, algorithms and devices", DRY),
    "price": Command("cli.price", "price methods on a cluster in seconds, without training", APP),
    "profile": Command("cli.profile", "profile an update on this machine", APP),
    "papers": Command("cli.papers", "judge the papers' claims"),
    "local": Command("cli.local", "run several processes on this machine as one job"),
    "submit": Command("cli.submit", "submit shards of a grid as jobs", ("cli.sweep", *APP)),
    "reality": Command("report.race", "compare a race of real workers with theory"),
    "momentum": Command("report.implicit_momentum", "read implicit momentum off runs and replicas"),
    "efficiency": Command("report.statistical_efficiency", "measure staleness in extra updates"),
    "prepare": Command("problem.data.prepare", "prepare a data set for config.data.name=tfds"),
    "config": Command("cli.show", "print a config, or the differences of two", APP),
    "list": Command("cli.listing", "list what configs can name, shipped configs and keys"),
    "cite": Command("cli.cite", "print BibTeX of the papers that a run used"),
    "completion": Command("cli.completion", "print a script for shell completion"),
}
# Commands that write all files before they print, so that a reader such as `head` may close early.
MAY_BE_CUT = (
    *("list", "config", "cite", "completion"),
    *("reality", "momentum", "efficiency"),
    *("plan", "price", "profile", "report"),
)


def main() -> None:
    """Runs the command that `sys.argv` names, and restores `sys.argv` and `sys.path` afterwards."""
    argv, path = sys.argv, list(sys.path)
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # last, so that the user's modules hide none
    name, *rest = argv[1:] or ["--help"]
    ours = takewhile(lambda argument: argument != "--", rest)  # then another command follows
    asks_help = any(re.fullmatch("--?(h|help|helpshort)", argument) for argument in ours)
    may_be_cut = asks_help or name in MAY_BE_CUT or name not in COMMANDS
    try:
        with quiet_broken_pipe() if may_be_cut else nullcontext():
            if name in ("-h", "--help", "--helpfull", "help"):
                print(usage())
            elif name in ("-V", "--version", "version"):
                print(f"optdyn {version()}")
            elif name not in COMMANDS:
                hint = did_you_mean(name, COMMANDS) or f"; there are {', '.join(COMMANDS)}"
                fail(f"no command {name!r}{hint}")
            elif asks_help:
                print(help_text(name))
            else:
                sys.argv = [f"optdyn {name}", *rest]
                module = f"optdyn.{COMMANDS[name].module}"
                runpy.run_module(module, run_name="__main__", alter_sys=True)
    finally:
        sys.argv, sys.path[:] = argv, path


def run(command: str) -> None:
    """Runs a command with this program's arguments, for `python -m launch.COMMAND`."""
    sys.argv[:] = ["optdyn", command, *sys.argv[1:]]
    main()


@contextmanager
def quiet_broken_pipe() -> Iterator[None]:
    """Inside, a broken pipe ends the command silently."""
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        drop()
        sys.exit(128 + signal.SIGPIPE)


def usage() -> str:
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


def help_text(name: str) -> str:
    """Returns what `optdyn COMMAND --help` prints: the module's docstring and flags."""
    command = COMMANDS[name]
    text = re.sub(r"python -m launch\.(\w+)", r"optdyn \1", docstring(command.module))
    flags = flags_of(command)
    width = max(map(len, flags), default=0)
    lines = [text, "", *(f"  {flag:{width}}  {about}".rstrip() for flag, about in flags.items())]
    if command.also:
        lines += [
            "",
            "--config takes a file, or a name that `optdyn list configs` shows; text after a colon",
            "is passed to the config, as in --config=images:fashion_mnist. The config.json of",
            "a run is a config. --config.KEY=VALUE sets a key: `optdyn list keys [PREFIX]` lists",
            "them all, with their defaults.",
            f"optdyn {name} --helpfull has the flags of all libraries, too.",
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
    modules = (*reversed(command.also), command.module)
    return {flag: about for module in modules for flag, about in flags_in(module).items()}


def flags_in(module: str) -> dict[str, str]:
    """Returns help by flag for `flags.DEFINE_...` and `add_argument` in a module."""
    found = {}
    for node in ast.walk(syntax_tree(module)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            name = node.func.attr
            if name.startswith("DEFINE_") or name == "add_argument":
                more = [k.value for k in node.keywords if k.arg in ("help", "help_string")]
                values = [n.value for n in (*node.args, *more) if isinstance(n, ast.Constant)]
                first, *words = [text for text in values if isinstance(text, str)]
                about = words[-1] if words else ""
                found["--" * name.startswith("DEFINE_") + first] = about
    return found


def docstring(module: str) -> str:
    return ast.get_docstring(syntax_tree(module)) or ""


@cache
def syntax_tree(module: str) -> ast.Module:
    """Returns the syntax tree of a module, named relative to `optdyn`."""
    return ast.parse(PACKAGE.joinpath(*module.split(".")).with_suffix(".py").read_text())


if __name__ == "__main__":
    main()
