"""Commands that tests run in this process, one after the other, with flags of the same names."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest
from absl.flags import FLAGS


@contextmanager
def called(monkeypatch: pytest.MonkeyPatch, command: str, arguments: Sequence) -> Iterator[None]:
    """`sys.argv` is that command's; the flags that it defines and its config file go with it."""
    before = set(FLAGS)
    monkeypatch.setattr(sys, "argv", [command, *map(str, arguments)])
    try:
        yield
    finally:
        for name in set(FLAGS) - before:
            delattr(FLAGS, name)
        FLAGS.unparse_flags()
        sys.modules.pop("config_config", None)  # the config file, as a module
