"""The commands, a module each: `python -m launch.train` or `optdyn train`.

Their imports take seconds, and libraries meet a KeyboardInterrupt in the midst of them in any way:
with a traceback, with another exception, or by going on. So Ctrl-C ends a command at once until
`interruptible` is called.
"""

import os
import signal
import sys
from types import FrameType

from optdyn.base import signals, streams


def end(number: int, frame: FrameType | None) -> None:
    """Ends the process with a line and the exit code that shells give to the signal."""
    streams.put("interrupted\n")
    os._exit(128 + number)


def interruptible() -> None:
    """From now on Ctrl-C is a KeyboardInterrupt."""
    if signal.getsignal(signal.SIGINT) is end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


# Python calls itself "-m" until it has found the module of `python -m launch.NAME`. Whoever imports
# the package for something else keeps their own handler, and so does who had Ctrl-C ignored.
is_command = os.path.basename(sys.argv[0]) in ("-m", "optdyn")
if is_command:
    streams.settle()
    signals.take(signal.SIG_IGN, *signals.SAVING)  # until there is something to save
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, end)
