"""The claims are whole, and the scoreboard is what was judged."""

import json
import sys

import pytest

from optdyn.configs import papers as every_claim
from optdyn.evidence.claim import Claim
from optdyn.launch import papers
from optdyn.outputs.workdir import WorkdirError

CLAIM = """
from optdyn.evidence.claim import Claim, Verdict
CLAIM = Claim(1, "Two is | less than three", "arithmetic", "numbers", "the other", "the rule")
def measure(study): return {"two": study.remember("two", lambda: 2), "seeds": study.report}
def verdict(result): return Verdict("confirmed" if result["two"] < 3 else "refuted", "by one")
def picture(result, figure): figure.subplots().plot([result["two"], 3])
"""


@pytest.fixture
def claims(tmp_path, monkeypatch):
    folder = tmp_path / "claims"
    folder.mkdir()
    (folder / "arithmetic.py").write_text(CLAIM)
    monkeypatch.setattr(every_claim, "__path__", [str(folder)])
    yield tmp_path / "board"
    sys.modules.pop("optdyn.configs.papers.arithmetic", None)


def test_every_claim_says_what_it_is_and_how_it_is_judged():
    every = [papers.load(name) for name in papers.names()]
    numbers = [module.CLAIM.number for module in every]
    assert len(set(numbers)) == len(numbers) and numbers == sorted(numbers)
    for module in every:
        assert isinstance(module.CLAIM, Claim) and module.__doc__
        assert all(str(text).strip() for text in module.CLAIM)
        assert callable(module.measure) and callable(module.verdict) and callable(module.picture)


def test_the_scoreboard_has_the_verdict_and_is_not_made_twice(claims, monkeypatch):
    board = papers.run(claims, ["arithmetic"], "small", 3)
    row = json.loads((claims / "scoreboard.json").read_text())["claims"]["arithmetic"]
    assert (row["verdict"], row["by"]) == ("confirmed", "by one")
    assert row["result"] == {"two": 2, "seeds": [3000, 3001, 3002, 3003, 3004]}
    assert row["seeds"]["choose"] == [3500, 3501]
    assert (
        "Two is \\| less than three | confirmed | by one" in (claims / "scoreboard.md").read_text()
    )
    assert "data:image/svg+xml" in (claims / "scoreboard.html").read_text()
    monkeypatch.setattr(papers, "judge", lambda *_: pytest.fail("it was judged"))
    assert papers.run(claims, ["arithmetic"], "small", 3)["claims"] == json.loads(
        json.dumps(board["claims"])
    )
    with pytest.raises(WorkdirError, match="--seed=3"):
        papers.run(claims, ["arithmetic"], "small", 4)
