"""Processes of this machine, as Linux shows them."""

import re
from pathlib import Path


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
