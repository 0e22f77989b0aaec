"""Command lines without a config, read by argparse: what is wrong is one line and exit code 2."""

import argparse
import sys
from collections.abc import Sequence
from typing import NoReturn

from optdyn.base.errors import did_you_mean, fail


class Parser(argparse.ArgumentParser):
    def read(self, arguments: Sequence[str] | None = None) -> argparse.Namespace:
        """Returns the values of the flags in `arguments`, by default those of the program."""
        argv = sys.argv[1:] if arguments is None else arguments
        known = [flag for action in self._actions for flag in action.option_strings]
        for argument in argv:
            flag = argument.partition("=")[0]
            if flag == "--":
                break
            if flag.startswith("--") and not any(other.startswith(flag) for other in known):
                flags = [other for other in known if other.startswith("--")]
                hint = did_you_mean(flag, flags) or f"; there are {', '.join(flags)}"
                self.error(f"no flag {flag}{hint}")
        return self.parse_args(argv)

    def error(self, message: str) -> NoReturn:
        fail(message)


def invocation(command: str) -> str:
    """Returns a command in the form of this program's call: `optdyn report` or `python -m ...`."""
    by_module = any(argument.startswith("launch.") for argument in sys.orig_argv[:3])
    return f"python -m launch.{command}" if by_module else f"optdyn {command}"
