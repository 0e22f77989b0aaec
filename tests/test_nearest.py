"""`make test-fast`: what git says is changed, the tests nearest to it in order, and the end."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import nearest

ROOT = Path(__file__).parents[1]
TREE = {
    "research/optdyn/methods/__init__.py": "",
    "research/optdyn/methods/gossip.py": "",
    "research/optdyn/graphs.py": "from optdyn.methods import gossip",
    "research/optdyn/named.py": "",
    "research/optdyn/cli/sweep.py": "def main():\n    from optdyn import graphs",
    "tests/methods/test_gossip.py": "def test_mixes(): pass",
    "tests/test_graphs.py": "from optdyn import graphs, named\ndef test_draws(): pass",
    "tests/test_more.py": "from optdyn import graphs\ndef test_more(): pass",
    "tests/test_command.py": "def test():\n    'optdyn.graphs'\n    call('-m', 'launch.sweep')",
    "tests/test_named.py": "import optdyn.named",
    "tests/test_battery.py": "CASES = ['gossip', 'sync']",
    "tests/test_pages.py": "glob('*.md')",
}


@pytest.fixture
def tree(tmp_path):
    for path, text in TREE.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    return tmp_path


def git(folder, *words):
    me = ["-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *me, *words], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def repository(tree):
    """On `main`, all files in its last commit."""
    git(tree, "init", "-b", "main")
    git(tree, "commit", "--allow-empty", "-m", "empty")
    git(tree, "add", ".")
    git(tree, "commit", "-m", "all")
    return tree


def test_changed_is_what_git_finds(repository):
    """On a clean main the last commit; on a branch what it has committed, edited and added."""
    assert nearest.changed(repository) == set(TREE)
    git(repository, "checkout", "-b", "mine")
    (repository / "research/optdyn/named.py").write_text("a = 1")
    git(repository, "commit", "-a", "-m", "one")
    assert nearest.changed(repository) == {"research/optdyn/named.py"}
    (repository / "research/optdyn/cli/sweep.py").write_text("b = 1")
    (repository / "research/optdyn/new.py").write_text("c = 1")
    assert nearest.changed(repository) == {
        "research/optdyn/named.py",
        "research/optdyn/cli/sweep.py",
        "research/optdyn/new.py",
    }
    git(repository, "checkout", "main", "--", ".")
    assert nearest.changed(repository) == {"research/optdyn/new.py"}


def test_distances_count_imports(tree):
    """By name 0; by imports, also in a function and as a string, but not in a docstring; by cases.

    `graphs` imports `gossip`, so what imports `graphs` is 2 away; `launch.sweep` is one further.
    """
    suite = nearest.Suite(tree)
    assert suite.distances(["research/optdyn/methods/gossip.py"]) == {
        "tests/methods/test_gossip.py": 0,
        "tests/test_graphs.py": 2,
        "tests/test_more.py": 2,
        "tests/test_battery.py": nearest.COLLECTED,
    }
    assert suite.distances(["research/optdyn/cli/sweep.py"]) == {"tests/test_command.py": 1}
    assert suite.distances(["research/optdyn/named.py"]) == {
        "tests/test_named.py": 0,
        "tests/test_graphs.py": 1,
    }
    assert suite.distances(["README.md"]) == {"tests/test_pages.py": 1}
    assert suite.distances(["Makefile", "research/optdyn/gone.py"]) == {}
    assert set(suite.distances(["tests/conftest.py"])) == set(suite.tests)


def test_the_nearest_is_run_however_far(tree):
    """Where no test is within reach, those at the smallest distance are."""
    for number in range(4):
        text = f"from optdyn import m{number + 1}"
        (tree / f"research/optdyn/m{number}.py").write_text(text if number < 3 else "")
    (tree / "tests/test_far.py").write_text("from optdyn import m0")
    assert nearest.Suite(tree).distances(["research/optdyn/m3.py"]) == {"tests/test_far.py": 4}


def test_cases_named_after_a_file_are_next_to_it():
    near = {"tests/test_a.py": 0, "tests/test_b.py": 2, "tests/test_c.py": nearest.COLLECTED}
    expected = {
        "tests/test_a.py::test_x[sync]": 0,
        "tests/test_b.py::test_x[gossip+local-1]": 1,
        "tests/test_b.py::test_gossip[sync]": 2,
        "tests/test_b.py::test_x[gossiping]": 2,
        "tests/test_c.py::test_x[adam-gossip]": 1,
        "tests/test_c.py::test_x[sync]": None,
        "tests/test_d.py::test_x[gossip]": None,
    }
    found = {nodeid: nearest.distance(nodeid, near, {"gossip"}) for nodeid in expected}
    assert found == expected


def test_modules_of_this_project_are_found():
    """Real imports, of all kinds that the project has."""
    used = nearest.Suite(ROOT).used
    assert "research/optdyn/methods/gossip.py" in used["tests/methods/test_gossip.py"]
    assert "research/optdyn/train/trainer.py" in used["tests/conftest.py"]
    assert "research/optdyn/cli/sweep.py" in used["tests/cli/sweeping.py"]
    assert "research/optdyn/cli/python.py" in used["research/optdyn/__init__.py"]


HANGS = """
import os, signal, time
def late(): import optdyn.named
def test_hangs():
    os.kill(os.getpid(), signal.SIGALRM)
    time.sleep(1000)
def test_last(): pass
"""


def test_a_session_runs_the_nearest_first_and_ends(repository):
    """The test that runs when the alarm rings is interrupted; after the minute no other begins."""
    (repository / "tests/test_graphs.py").write_text(HANGS)
    (repository / "tests/test_named.py").write_text("def test_first(): pass")
    git(repository, "commit", "-a", "-m", "tests")
    (repository / "research/optdyn/named.py").write_text("a = 2")
    names = ["test_named.py::test_first", "test_graphs.py::test_hangs", "test_graphs.py::test_last"]
    for left, results in (100, ["PASSED", "SKIPPED", "PASSED"]), (-1, ["SKIPPED"] * 3):
        command = [sys.executable, "-m", "pytest", "-p", "tests.nearest", "-v", "tests"]
        ends = {"PYTHONPATH": str(ROOT), nearest.SECONDS: str(left)}
        others = {k: v for k, v in os.environ.items() if k != nearest.CHOSEN}  # of this session
        done = subprocess.run(
            [*command, "-p", "no:cacheprovider", "-o", "addopts=", "--rootdir=."],
            **{"cwd": repository, "env": others | ends, "timeout": 60},
            **{"capture_output": True, "text": True},
        )
        said = [line.split()[:2] for line in done.stdout.splitlines() if "::test" in line]
        expected = [[f"tests/{name}", result] for name, result in zip(names, results, strict=True)]
        assert said[:3] == expected, done.stdout + done.stderr
        assert done.returncode == 0
        reason = nearest.TOO_LONG if left > 0 else nearest.OVER
        assert f"{reason}: {results.count('SKIPPED')} skipped, tests/" in done.stdout
