"""Commands in this process, as fixtures."""

import pytest

from optdyn.cli import main
from optdyn.report import report
from tests.cli.sweeping import command
from tests.own_flags import called


@pytest.fixture
def optdyn(monkeypatch, capsys):
    """`optdyn(*arguments)`: (exit code, stdout, stderr) of the command, in this process."""

    def run(*arguments):
        code = 0
        with called(monkeypatch, "optdyn", arguments):
            try:
                main.main()
            except SystemExit as exited:
                code = exited.code or 0
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


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
