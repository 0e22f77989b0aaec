"""The table of all questions, and the page that is made of it."""

import re

import pytest

from analysis.studies import _page
from optdyn.cli import papers
from optdyn.evidence.claim import WORDS

QUESTIONS = _page.read()["question"]
FIELDS = {
    "asked": list,
    "question": str,
    "verdict": str,
    "answer": str,
    "n": int,
    "not_said": str,
    "source": str,
    "commit": str,
    "command": str,
}


def test_the_page_is_what_its_script_makes():
    assert _page.PAGE.read_text() == _page.page(_page.read())


def test_every_claim_is_asked_in_one_row():
    assert sorted(n for row in QUESTIONS for n in row["asked"]) == list(range(1, 70))


@pytest.mark.parametrize("row", QUESTIONS, ids=lambda row: str(row["asked"][-1]))
def test_a_row_is_whole(row):
    assert {key: type(value) for key, value in row.items() if key != "study"} == FIELDS
    assert all(row[key] for key in FIELDS)
    assert row["asked"] == sorted(row["asked"])  # the last one answers
    assert row["verdict"] in WORDS
    assert re.fullmatch(r"[0-9a-f]{7}", row["commit"])
    assert re.match(r"optdyn papers --workdir=\S+ --only=\w+ --seed=\d+", row["command"])


def test_every_study_has_its_row():
    studies = papers.claims(_page.FOLDER)
    assert sorted(row["study"] for row in QUESTIONS if "study" in row) == sorted(studies)
