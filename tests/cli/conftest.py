"""The command `launch.sweep` as a fixture."""

import pytest

from optdyn.report import report
from tests.cli.sweeping import command


@pytest.fixture
def reporting(capsys, monkeypatch):
    """`reporting(*arguments)`: (exit code, stdout, stderr) of the command."""
    return lambda *arguments: command(arguments, capsys, monkeypatch)


@pytest.fixture
def unreported(monkeypatch):
    """Without the report, which takes longer than these sweeps."""
    monkeypatch.setattr(report, "write", lambda workdir, target: workdir / "report.html")
    monkeypatch.setattr(report, "best", lambda workdir, target: "")


@pytest.fixture
def sweeping(reporting, unreported):
    """The same as `reporting`, without the report."""
    return reporting
