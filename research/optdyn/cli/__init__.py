"""The commands, one module each: `python -m launch.train` or `optdyn train`.

Their imports take seconds, and libraries answer a KeyboardInterrupt during imports in many ways. So
Ctrl-C ends a command at once until `interruptible` is called.
"""

import os
import signal
import sys
from types import FrameType

from optdyn.base import signals, streams


def end(number: int, frame: FrameType | None) -> None:
    """Ends the process with a line and the shell's exit code for the signal."""
    streams.put("interrupted\n")
    os._exit(128 + number)


def interruptible() -> None:
    """Makes Ctrl-C a KeyboardInterrupt again."""
    if signal.getsignal(signal.SIGINT) is end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


# `sys.argv[0]` is "-m" until Python has found the module of `python -m launch.NAME`. Other programs
# that import the package keep their handlers, and an ignored Ctrl-C stays ignored.
is_command = os.path.basename(sys.argv[0]) in ("-m", "optdyn")
if is_command:
    streams.settle()
    signals.take(signal.SIG_IGN, *signals.SAVING)  # until there is something to save
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, end)
