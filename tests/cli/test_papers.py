"""The claims are whole, and the scoreboard is what was judged."""

import importlib
import json
import shutil
import subprocess
import sys

import pytest

from optdyn.base.errors import InputError
from optdyn.cli import papers
from optdyn.evidence import lock
from optdyn.train.workdir import WorkdirError

CLAIM = """
from optdyn.evidence.claim import Claim, Verdict
CLAIM = Claim(1, "Two is | less than three", "arithmetic", "numbers", "the other", "the rule")
def measure(study): return {"two": study.remember("two", lambda: 2), "seeds": study.report}
def verdict(result): return Verdict("confirmed" if result["two"] < 3 else "refuted", "by one")
def picture(result, figure): figure.subplots().plot([result["two"], 3])
"""

SPAWNED = """
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from analysis.studies import _helper
def two():
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(_helper.two).result()
"""


@pytest.fixture
def ours(tmp_path, monkeypatch):
    """The default folder below the current one, with a claim, a table and a helper."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    papers.STUDIES.mkdir(parents=True)
    (papers.STUDIES / "arithmetic.py").write_text(CLAIM)
    (papers.STUDIES / "a_table.py").write_text("CLAIM = None\n")
    (papers.STUDIES / "_helper.py").write_text("")
    yield papers.STUDIES
    for name in ("arithmetic", "a_table"):
        sys.modules.pop(name, None)


def test_the_projects_own_claims_have_no_lock_and_name_no_files(ours, tmp_path):
    claims = papers.claims(ours)
    assert list(claims) == papers.quick(claims) == ["arithmetic"]
    board = papers.run(tmp_path / "board", ["arithmetic"], "small", 0, ours)
    assert "files" not in board["claims"]["arithmetic"] and "deviations" not in board
    assert not (ours / lock.LOCK).exists()
    again = papers.run(tmp_path / "board", ["arithmetic"], "small", 0, ours)
    assert again["claims"] == json.loads(json.dumps(board["claims"]))


def test_the_command_judges_the_folder_that_is_there_with_processes_that_find_its_helpers(
    ours, optdyn
):
    text = CLAIM.replace("lambda: 2", "two")
    (ours / "arithmetic.py").write_text(SPAWNED + text)
    (ours / "_helper.py").write_text("def two(): return 2\n")
    command = [sys.executable, "-m", "optdyn.cli.papers", "--workdir=board"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0 and "Two is" in done.stdout and "confirmed" in done.stdout
    shutil.rmtree(ours)
    for more, words in (
        ([], "--claims=analysis/studies: no such folder, which is the default"),
        (["--claims=mine"], "--claims=mine: no such folder\n"),
    ):
        code, _, line = optdyn("papers", "--workdir=board", *more)
        assert code == 2 and words in line and line.count("\n") == 1


def test_the_scoreboard_has_the_verdict_and_is_not_made_twice(ours, tmp_path, monkeypatch):
    workdir = tmp_path / "board"
    board = papers.run(workdir, ["arithmetic"], "small", 3, ours)
    row = json.loads((workdir / "scoreboard.json").read_text())["claims"]["arithmetic"]
    assert (row["verdict"], row["by"]) == ("confirmed", "by one")
    assert row["result"] == {"two": 2, "seeds": [3000, 3001, 3002, 3003, 3004]}
    assert row["seeds"]["choose"] == [3500, 3501]
    assert (
        "Two is \\| less than three | confirmed | by one" in (workdir / "scoreboard.md").read_text()
    )
    assert "data:image/svg+xml" in (workdir / "scoreboard.html").read_text()
    monkeypatch.setattr(papers, "judge", lambda *_: pytest.fail("it was judged"))
    assert papers.run(workdir, ["arithmetic"], "small", 3, ours)["claims"] == json.loads(
        json.dumps(board["claims"])
    )
    with pytest.raises(WorkdirError, match="--seed=3"):
        papers.run(workdir, ["arithmetic"], "small", 4, ours)


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A folder of claims of one's own, one with a helper beside it, as a new process finds it."""
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "sums.py").write_text(CLAIM.replace("Claim(1", "Claim(2") + "import _helper\n")
    (folder / "_helper.py").write_text("")
    (folder / "arithmetic_of_ours.py").write_text(CLAIM)
    monkeypatch.setattr(sys, "path", [*sys.path])

    def forget():
        for name in ("sums", "_helper", "arithmetic_of_ours"):
            sys.modules.pop(name, None)
        importlib.invalidate_caches()
        shutil.rmtree(folder / "__pycache__", ignore_errors=True)

    forget()
    yield folder, forget
    forget()


def test_claims_of_ones_own_are_locked_before_they_are_measured(own, tmp_path, monkeypatch):
    folder, _ = own
    assert list(papers.claims(folder)) == ["arithmetic_of_ours", "sums"]  # by number
    with monkeypatch.context() as patch:
        patch.setattr(papers, "judge", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            papers.run(tmp_path / "board", ["sums"], "small", 0, folder)
    locked = json.loads((folder / lock.LOCK).read_text())
    assert set(locked) == {"sums", "arithmetic_of_ours"} and locked["sums"]["rule"] == "the rule"
    assert set(locked["sums"]["files"]) == {"sums", "_helper"}
    git = subprocess.run(
        ["git", "hash-object", folder / "sums.py"], capture_output=True, text=True, check=True
    )
    assert locked["sums"]["files"]["sums"] == git.stdout.strip()
    board = papers.run(tmp_path / "board", ["sums"], "small", 0, folder)
    assert board["deviations"] == {} and board["claims"]["sums"]["verdict"] == "confirmed"
    assert {"sums", "_helper", "optdyn.evidence.claim"} <= set(board["claims"]["sums"]["files"])
    assert "deviates" not in (tmp_path / "board" / "scoreboard.md").read_text()


def test_what_differs_from_the_lock_is_listed_and_stays_listed(own, tmp_path):
    folder, forget = own
    papers.run(tmp_path / "board", ["sums"], "small", 0, folder)
    before = (folder / lock.LOCK).read_text()
    text = (folder / "sums.py").read_text().replace('"the rule"', '"another rule"')
    (folder / "sums.py").write_text(text)
    (folder / "arithmetic_of_ours.py").unlink()
    for _ in range(2):
        forget()
        board = papers.run(tmp_path / "board", ["sums"], "small", 0, folder)
        gone, changed = board["deviations"]["arithmetic_of_ours"], board["deviations"]["sums"]
        assert "the claim is gone since" in gone[0]
        assert "it was 'the rule'" in changed[0] and "the module sums has changed" in changed[1]
        assert (folder / lock.LOCK).read_text() == before
    for name in ("scoreboard.md", "scoreboard.html"):
        page = (tmp_path / "board" / name).read_text()
        assert "the claim is gone" in page and "confirmed (deviates)" in page
    (folder / "_helper.py").write_text("TWO = 3\n")
    forget()
    board = papers.run(tmp_path / "board", ["sums"], "small", 0, folder)
    assert "the module _helper has changed" in board["deviations"]["sums"][1]


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("sums.py", CLAIM.replace("def measure", "def measured"), "has no function 'measure'"),
        ("sums.py", CLAIM.replace("CLAIM =", "ANY ="), "has no CLAIM"),
        ("sums.py", "import nothing_like_this", "cannot be imported.*sums.py, line 1"),
        ("sums.py", "1 +", "cannot be imported"),
        ("sums.py", CLAIM.replace("Claim(1", "Claim('a'"), "has no CLAIM"),
        ("json.py", CLAIM, "another module is called 'json'"),
        ("sums.py", CLAIM.replace("study.report", "{2}"), "measure.. must return JSON values"),
        ("sums.py", CLAIM + "SEEDS = {'full': (1, 1)}", "has no --scale=small, but full"),
        (lock.LOCK, '{"sums": 3}', "must be a lock file"),
    ],
)
def test_what_is_no_claim_or_cannot_be_judged_is_refused_in_one_line(
    own, tmp_path, name, text, words
):
    folder, _ = own
    (folder / name).write_text(text)
    with pytest.raises(InputError, match=words):
        papers.run(tmp_path / "board", ["sums"], "small", 0, folder)


def test_a_claim_that_was_judged_by_other_files_says_so_and_keeps_its_verdict(
    own, tmp_path, capsys
):
    folder, forget = own
    papers.run(tmp_path / "board", ["sums"], "small", 0, folder)
    (folder / "_helper.py").write_text("TWO = 3\n")
    forget()
    board = papers.run(tmp_path / "board", ["sums"], "small", 0, folder)
    assert "another --workdir judges anew" in capsys.readouterr().err
    assert board["claims"]["sums"]["verdict"] == "confirmed"
