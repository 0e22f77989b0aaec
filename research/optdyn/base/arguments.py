"""Command lines without a config, read by argparse: what is wrong is one line and exit code 2."""

import argparse
import sys
from collections.abc import Sequence
from typing import NoReturn

from optdyn.base.errors import fail, meant


class Parser(argparse.ArgumentParser):
    """A parser that says which flag was meant in place of one that there is not."""

    def read(self, arguments: Sequence[str] | None = None) -> argparse.Namespace:
        """The values of the flags; by default those that the program was given."""
        given = sys.argv[1:] if arguments is None else arguments
        known = [flag for action in self._actions for flag in action.option_strings]
        for argument in given:
            flag = argument.partition("=")[0]
            if flag == "--":
                break
            if flag.startswith("--") and not any(other.startswith(flag) for other in known):
                own = [other for other in known if other.startswith("--")]
                hint = meant(flag, own) or f"; there are {', '.join(own)}"
                self.error(f"no flag {flag}{hint}")
        return self.parse_args(given)

    def error(self, message: str) -> NoReturn:
        """Prints the message in one line and ends the process with exit code 2."""
        fail(message)


def called(command: str) -> str:
    """A command as this program was called: `optdyn report`, or `python -m launch.report`."""
    by_module = any(argument.startswith("launch.") for argument in sys.orig_argv[:3])
    return f"python -m launch.{command}" if by_module else f"optdyn {command}"
