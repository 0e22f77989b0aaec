"""The pages: short at the door, with links that lead somewhere; test_blocks.py has commands."""

import re

import pytest

from tests.blocks import FENCED, PAGES, ROOT

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
