"""The tests nearest to a change, within a minute: `make test-fast`, or `pytest -p tests.nearest`.

What is changed is what git finds different from where this branch left `main`, committed or not; if
nothing is, the last commit. A test's distance from a changed file is

    0   it is in the file, or in one of its name: plan/phases.py, tests/tune/test_phases.py
    1   its case is named after the file: test_step_is_pure[gossip], methods/gossip.py
    n   its file imports the changed one by way of n - 1 others, or says its name in a string

The nearest come first; among files at one distance those first that import fewest. At most 20 files
are run, none of them further away than 2 unless none is nearer. A test is skipped that takes over
ten seconds, and so is what is left when the minute is over; the last lines say how many they are.
"""

import ast
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Collection, Mapping
from pathlib import Path

import pytest

FOLDERS = ("research", "analysis", "launch", "configs", "tests")
FAR = 2  # the largest distance that is run, if any test is so near
FILES = 20  # test files at most: to import them all takes as long as to run some
LONG = 10.0  # seconds of one test
SECONDS = "OPTDYN_TEST_FAST_SECONDS"  # after which no test goes on; by default 45, as pytest begins
CHOSEN = "OPTDYN_TEST_FAST"  # what is run and until when, for the workers of a session
OVER, TOO_LONG = "the minute is over", "a test takes over ten seconds"
COLLECTED = -1  # distance of a file of which only cases named after a change are run


def changed(root: Path) -> set[str]:
    """Paths below `root` that differ from where HEAD left `main`; else those of the last commit."""

    def git(*arguments: str) -> set[str]:
        done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True)
        return set(done.stdout.split("\n")) - {""}

    left = git("merge-base", "HEAD", "main") or git("merge-base", "HEAD", "origin/main")
    found = git("ls-files", "--others", "--exclude-standard")
    found |= git("diff", "--name-only", *(left or {"HEAD"}))
    return found or git("diff", "--name-only", "HEAD~1")


def module(path: str) -> str:
    """What an import calls it: research/optdyn/plan/phases.py is optdyn.plan.phases."""
    name = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    return name.removeprefix("research.")


class Suite:
    """Which module uses which, and the words that tests say, of the files as they are."""

    def __init__(self, root: Path):
        files = sorted(path for folder in FOLDERS for path in (root / folder).rglob("*.py"))
        paths = [str(path.relative_to(root)) for path in files]
        self._path_of = {module(path): path for path in paths}
        self.tests = [path for path in paths if Path(path).name.startswith("test_")]
        self.used = dict[str, set[str]]()
        self.words = dict[str, set[str]]()
        for path, file in zip(paths, files, strict=True):
            names, words = self._read(file.read_text())
            self.used[path] = {self._path_of[n] for n in names & set(self._path_of)} - {path}
            self.words[path] = words

    def _read(self, text: str) -> tuple[set[str], set[str]]:
        """The names of modules that a file imports or says, and the words of its strings."""
        names, words = set[str](), set[str]()
        tree = ast.parse(text)
        docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                inner = {f"{node.module}.{alias.name}" for alias in node.names}
                names |= inner if inner <= set(self._path_of) else {node.module, *inner}
            elif isinstance(node, ast.Constant) and id(node) not in docstrings:
                words |= set(re.findall(r"[\w./*-]+", str(node.value)))
        said = {word.removesuffix(".py").replace("/", ".") for word in words if word[0] != "."}
        said |= {re.sub(r"^launch\.", "optdyn.cli.", word) for word in said}  # the script's command
        return names | said | {module(word) for word in said if "." in word}, words

    def distances(self, paths: Collection[str]) -> dict[str, int]:
        """{test file: its distance from the changed `paths`}, of those that are to be collected."""
        found = {path: 0 for path in paths if path in self.used}
        for path in paths:
            parts = Path(path)
            if parts.name == "conftest.py":
                below = f"{parts.parent}/"
                found |= {test: 1 for test in self.tests if test.startswith(below)}
            elif parts.suffix != ".py":  # a page or a record: of tests that name it or its kind
                said = {parts.name, f"*{parts.suffix}"} - {"*"}
                found |= {test: 1 for test in self.tests if said & self.words[test]}
        found = _reached(found, self.used)
        for path in paths:
            found |= {test: 0 for test in named_after(path, self.tests)}
        near = {test: found[test] for test in self.tests if test in found}
        most = max(FAR, min(near.values(), default=0))
        near = {test: distance for test, distance in near.items() if distance <= most}
        stems = _stems(paths)
        named = [test for test in self.tests if test not in near and stems & self.words[test]]
        near |= dict.fromkeys(named, COLLECTED)
        nearest = sorted(near, key=lambda test: (abs(near[test]), len(self.used[test])))
        return {test: near[test] for test in nearest[:FILES]}


def _reached(found: Mapping[str, int], used: Mapping[str, Collection[str]]) -> dict[str, int]:
    """The distances of all files that use what is `found`, directly or by way of others."""
    users: dict[str, list[str]] = {}
    for user, files in used.items():
        for file in files:
            users.setdefault(file, []).append(user)
    found = dict(sorted(found.items(), key=lambda item: item[1]))
    queue = deque(found)
    while queue:
        one = queue.popleft()
        for user in users.get(one, ()):
            if found.get(user, sys.maxsize) > found[one] + 1:
                found[user] = found[one] + 1
                queue.append(user)
    return found


def named_after(path: str, tests: Collection[str]) -> list[str]:
    """The test files of a module's name: that in the folder of its name if there is one."""
    parts = Path(path)
    same = [test for test in tests if Path(test).name == f"test_{parts.stem}.py"]
    if parts.suffix != ".py":
        return []
    return [test for test in same if Path(test).parent.name in (parts.parent.name, "tests")] or same


def _stems(paths: Collection[str]) -> set[str]:
    return {Path(path).stem for path in paths if path.endswith(".py")} - {"__init__"}


def distance(nodeid: str, near: Mapping[str, int], stems: Collection[str]) -> int | None:
    """A test's, or None if it is not to run."""
    file, _, rest = nodeid.partition("::")
    of_file = near.get(file)
    if of_file == 0:
        return 0
    case = rest.partition("[")[2]
    if of_file is not None and not set(re.split(r"[^a-z0-9_]+", case)).isdisjoint(stems):
        return 1
    return None if of_file == COLLECTED else of_file


class _Nearest:
    """The hooks of pytest, for one session or one worker of it."""

    def __init__(self, root: Path):
        if CHOSEN not in os.environ:
            ends, paths = time.time() + float(os.environ.get(SECONDS, 45)), sorted(changed(root))
            os.environ[CHOSEN] = json.dumps([ends, paths, Suite(root).distances(paths)])
        self.root = root
        self.ends, self.paths, self.near = json.loads(os.environ[CHOSEN])
        self.running = False
        signal.signal(signal.SIGALRM, self._alarm)

    def _alarm(self, number, frame):
        if self.running:
            pytest.skip(TOO_LONG if time.time() < self.ends else OVER)

    def pytest_ignore_collect(self, collection_path):
        path = collection_path.relative_to(self.root).as_posix()
        return True if collection_path.is_file() and path not in self.near else None

    @pytest.hookimpl(trylast=True)  # after what is slow has been left out
    def pytest_collection_modifyitems(self, config, items):
        stems = _stems(self.paths)
        far = {item: distance(item.nodeid, self.near, stems) for item in items}
        config.hook.pytest_deselected(items=[item for item in items if far[item] is None])
        items[:] = [item for item in items if far[item] is not None]
        order = {file: place for place, file in enumerate(self.near)}  # the nearest first
        items.sort(key=lambda item: (far[item], order[item.nodeid.partition("::")[0]]))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self):
        left = self.ends - time.time()
        if left <= 0:
            pytest.skip(OVER)
        signal.setitimer(signal.ITIMER_REAL, min(left, LONG))
        return (yield from self._interrupted())

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self):
        return (yield from self._interrupted())

    def _interrupted(self):
        """What the test does, which the alarm interrupts; its teardown is not."""
        self.running = True
        try:
            return (yield)
        finally:
            self.running = False

    def pytest_sessionfinish(self, session, exitstatus):
        if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
            session.exitstatus = pytest.ExitCode.OK  # no test is near, as of a line in Makefile

    def pytest_terminal_summary(self, terminalreporter):
        changes = ", ".join(self.paths) or "nothing"
        terminalreporter.write_line(f"changed: {changes}; {len(self.near)} test files are near")
        for reason in (TOO_LONG, OVER):
            skipped = terminalreporter.stats.get("skipped", ())
            names = [report.nodeid for report in skipped if reason in str(report.longrepr)]
            if names:
                terminalreporter.write_line(f"{reason}: {len(names)} skipped, {names[0]} the first")


def pytest_configure(config):
    config.pluginmanager.register(_Nearest(config.rootpath))
