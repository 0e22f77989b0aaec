"""The pages: short at the door, with links that lead somewhere; test_blocks.py has commands."""

import re

import pytest

from analysis.architecture import PACKAGE, PICTURE, drawing, uses
from tests.blocks import FENCED, PAGES, ROOT

METHODS = [
    page
    for page in PAGES
    if page.parent.name == "methods" and page.stem not in ("README", "adding")
]
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]


def text_of(page):
    return FENCED.sub("", page.read_text())


def anchors(page):
    """Of the headings, as GitHub and mkdocs both make them: of letters, digits and hyphens."""
    headings = re.findall(r"^#+ (.*)$", text_of(page), re.M)
    return {re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", h).strip().lower()) for h in headings}


def test_the_first_page_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_links_lead_somewhere(page):
    links = re.findall(r"""\]\(([^)\s]+)\)|(?:src|href)="([^"]+)\"""", text_of(page))
    for link in (markdown or tag for markdown, tag in links):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        if anchor:
            assert anchor in anchors(target), link


def test_the_picture_of_the_package_is_that_of_its_imports():
    """No circle, either; `python -m analysis.architecture` draws it anew."""
    assert PICTURE.read_text() == drawing(uses())


def test_the_path_of_an_update_names_functions_that_exist():
    text = (ROOT / "docs" / "architecture.md").read_text()
    named = re.findall(r"`([a-z_]+/[a-z_]+\.py)(?:: (\w+))?`", text)
    assert len(named) > 10
    for file, function in named:
        source = (PACKAGE / file).read_text()
        assert not function or re.search(rf"^def {function}\b", source, re.M), (file, function)


@pytest.mark.parametrize("page", METHODS, ids=lambda page: page.stem)
def test_the_page_of_a_method_says_what_becomes_of_a_models_state(page):
    assert "(README.md#state-of-the-model)" in page.read_text()
