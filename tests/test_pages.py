"""The pages: short at the door, with links that lead somewhere and commands that there are."""

import re
import shlex
from pathlib import Path

import pytest

from optdyn.cli import configs, main
from optdyn.cli.keys import keys

ROOT = Path(__file__).parents[1]
FOLDERS = ("research", "launch", "analysis", "configs", "docs")
PAGES = sorted(
    [*ROOT.glob("*.md"), *(page for folder in FOLDERS for page in (ROOT / folder).rglob("*.md"))]
)
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
# What a key has before it in a grid, and in a method that is joined with others.
MORE = re.compile(r"(?<=--config\.)base\.|(?<=--config\.method\.)[a-z_]+\.(?=[a-z_]+$)")
BLOCK = re.compile(r"^```(\w*).*?\n(.*?)^```$", re.M | re.S)


def text_of(page):
    return BLOCK.sub("", page.read_text())


def anchors(page):
    """Of the headings, as GitHub and mkdocs both make them: of letters, digits and hyphens."""
    headings = re.findall(r"^#+ (.*)$", text_of(page), re.M)
    return {re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", h).strip().lower()) for h in headings}


def commands(page):
    """The lines of its blocks that call optdyn or a module of ours, without comments."""
    for kind, block in BLOCK.findall(page.read_text()):
        if not kind:
            for line in re.split(r"\n| && ", block.replace("\\\n", " ")):
                words = (
                    shlex.split(line, comments=True) if "optdyn" in line or " -m " in line else ()
                )
                yield from ([words] if words else [])


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


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_commands_name_what_there_is(page):
    """The command, the shipped config and every key of it, but those of what is one's own."""
    known = {f"--config.{key}" for key in keys()}
    shipped = set(configs.configs())
    for words in commands(page):
        if words[0] == "optdyn":
            assert words[1].startswith("-") or words[1] in main.COMMANDS, words
        of_own = any(word.startswith("--config=my_") for word in words)  # its keys may be, too
        for word in words:
            flag, _, value = word.partition("=")
            if (
                flag == "--config"
                and value
                and not value.startswith((".", "my_", "workdirs", "DIR"))
            ):
                name = value.partition(":")[0].removeprefix("configs/").removesuffix(".py")
                assert name in shipped or not re.match(r"[a-z_/]+$", name), word
            if flag.startswith("--config.") and "options" not in flag:
                assert of_own or MORE.sub("", flag) in known, word
