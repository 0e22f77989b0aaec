"""Processes that tests start, and those of this machine, as Linux shows them."""

import re
import signal
import subprocess
from contextlib import contextmanager
from pathlib import Path

LIMIT = 200  # seconds that a process may take to end, where all cores are taken


@contextmanager
def usual_signals():
    """Inside, signals do in this process, and in those that it starts, what they do in a terminal.

    Suites run in the background of a script, where SIGINT is ignored, and under nohup.
    """
    others = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
    usual = dict.fromkeys(others, signal.SIG_DFL) | {signal.SIGINT: signal.default_int_handler}
    before = {number: signal.signal(number, handler) for number, handler in usual.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def ended(process):
    """(standard output, standard error) of a process when it has ended; killed if it does not."""
    try:
        return process.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise


def no_other_worker(config):
    """Where a worker of xdist dies the run ends, says in which test, and fails.

    With another worker in its place `--dist=loadfile` waits for the tests of the dead one for ever.
    """
    if getattr(config.option, "maxworkerrestart", "") is None:
        config.option.maxworkerrestart = "0"


def parents():
    """The parent of every process that is there."""
    found = {}
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            parent = re.search(r"^PPid:\t(\d+)$", status.read_text(), re.M)
        except OSError:  # it has ended
            continue
        if parent:
            found[int(status.parent.name)] = int(parent[1])
    return found


def read(pid, name):
    """A file of a process, `cmdline` or `environ`; empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes().decode(errors="replace")
    except OSError:
        return ""
