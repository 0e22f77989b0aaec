"""What mkdocs builds the site of: pages where they lie, notebooks, keys and docstrings.

`make docs` runs mkdocs with this file as its hook. A page's place in the site is its place in the
repository, so a link between pages is the same in both. What a page links to besides, such as a
record or a source file, is copied. A public name without a docstring ends the build.
"""

import ast
import html
import json
import re
from base64 import b64decode
from collections.abc import Iterator
from pathlib import Path
from posixpath import dirname, normpath
from typing import Any

from latex2mathml.converter import convert
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
FOLDERS = ("research", "launch", "analysis", "configs", "docs")
PACKAGE = ROOT / "research" / "optdyn"
LINK = re.compile(r"""\]\(([^)\s]+)\)|(?:src|href)="([^"]+)\"""")


def on_config(config: Any) -> Any:
    """Lets `mkdocs serve` watch all folders."""
    config.watch += [str(ROOT / folder) for folder in FOLDERS]
    return config


def on_files(files: Files, *, config: Any) -> Files:
    """Adds all pages, what they link to, and the pages that are made here."""

    def add(uri: str, text: str | bytes | None = None) -> None:
        if files.get_file_from_path(uri) is None:
            source = {"content": text} if text is not None else {"abs_src_path": str(ROOT / uri)}
            files.append(File.generated(config, uri, **source))

    pages = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
    for folder in FOLDERS:
        pages += sorted((ROOT / folder).rglob("*.md"))
    for page in pages:
        uri = page.relative_to(ROOT).as_posix()
        add(uri)
        for linked in links(page.read_text()):
            target = normpath(f"{dirname(uri)}/{linked.partition('#')[0]}").lstrip("/")
            if (ROOT / target).is_file() and not target.endswith((".md", ".ipynb")):
                add(target)
    for path in sorted((ROOT / "analysis" / "notebooks").glob("*.ipynb")):
        uri = path.relative_to(ROOT).as_posix()
        text, pictures = notebook(path)
        add(f"{uri}.md", text)
        for name, content in pictures.items():
            add(f"{dirname(uri)}/{name}", content)
    notebooks = [f.src_uri for f in files if f.src_uri.endswith(".ipynb.md")]
    config.nav.insert(4, {"Notebooks": notebooks})
    add("reference/keys.md", keys())
    for uri, text in reference():
        add(uri, text)
    config.nav.append({"Reference": [*outline(), {"Keys of a config": "reference/keys.md"}]})
    return files


def links(text: str) -> Iterator[str]:
    """The targets of a page's links that are inside the repository."""
    for markdown, tag in LINK.findall(re.sub(r"```.*?```", "", text, flags=re.S)):
        target = markdown or tag
        if not re.match(r"[a-z]+:|#", target):
            yield target


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Links to notebooks lead to their pages; the search finds pages before the API."""
    if not page.file.src_uri.startswith("reference/"):
        page.meta["search"] = {"boost": 3}
    return re.sub(r"(\]\([^)\s]+\.ipynb)\)", r"\1.md)", markdown)


def on_page_content(text: str, **_: Any) -> str:
    """TeX becomes MathML, which a browser draws without a script."""

    def drawn(found: re.Match[str]) -> str:
        tex = html.unescape(found[2]).strip()
        display = "block" if tex.startswith("\\[") else "inline"
        return str(convert(tex[2:-2].strip(), display=display))

    return re.sub(r'<(div|span) class="arithmatex">(.*?)</\1>', drawn, text, flags=re.S)


def notebook(path: Path) -> tuple[str, dict[str, bytes]]:
    """An executed notebook as a page, and its pictures by name."""
    parts, pictures = list[str](), dict[str, bytes]()
    for cell in json.loads(path.read_text())["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        for output in cell["outputs"]:
            data = output.get("data", {})
            if "image/png" in data:
                name = f"{path.stem}-{len(pictures)}.png"
                pictures[name] = b64decode(data["image/png"])
                parts.append(f"![Output]({name})")
            elif text := "".join(data.get("text/plain", output.get("text", ""))):
                parts.append(f"```\n{text}\n```")
    return "\n\n".join(parts), pictures


def keys() -> str:
    """All keys of a config, as `optdyn list keys` has them."""
    from optdyn.cli import listing

    rows = ["# Keys of a config", "", "As `optdyn list keys` prints them.", ""]
    rows += ["| key | default | what it is |", "|---|---|---|"]
    for name, text in listing.keys().items():
        value, _, about = text.removeprefix("= ").partition("  ")
        rows.append(f"| `config.{name}` | `{value}` | {cell(about)} |")
    return "\n".join(rows)


def cell(text: str) -> str:
    """As the cell of a table."""
    return " ".join(text.split()).replace("|", "\\|")


def modules() -> dict[str, Path]:
    """The files of all modules that have a page, packages before what is in them."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        inside = path.relative_to(PACKAGE).with_suffix("").parts
        found[".".join(("optdyn", *(part for part in inside if part != "__init__")))] = path
    return dict(sorted(found.items()))


def page_of(name: str, packages: set[str]) -> str:
    """The place of a module's page."""
    path = f"reference/{name.replace('.', '/')}"
    return f"{path}/README.md" if name in packages else f"{path}.md"


def reference() -> Iterator[tuple[str, str]]:
    """A page a module, made of its docstrings, and one of the public names."""
    import optdyn

    missing = [f"optdyn.{n}" for n in optdyn.__all__ if not getattr(optdyn, n).__doc__]
    found = modules()
    first = {}
    for name, path in found.items():
        text = ast.get_docstring(ast.parse(path.read_text()))
        if not text:
            missing.append(name)
        first[name] = (text or "").partition("\n")[0]
    if missing:
        raise PluginError(f"without a docstring: {', '.join(missing)}")
    packages = {name for name, path in found.items() if path.name == "__init__.py"}
    for name in found:
        lines = [f"# {name}", "", f"::: {name}"]
        inside = [n for n in found if n.rpartition(".")[0] == name]
        if inside:
            lines += ["", "## Modules", "", "| | |", "|---|---|"]
        here = dirname(page_of(name, packages))
        for n in inside:
            place = page_of(n, packages).removeprefix(f"{here}/")
            lines.append(f"| [{n.rpartition('.')[2]}]({place}) | {cell(first[n])} |")
        yield page_of(name, packages), "\n".join(lines)
    yield "reference/names.md", names(found, packages)


def names(found: dict[str, Path], packages: set[str]) -> str:
    """The public names, `import optdyn as od`, and where each is explained."""
    import optdyn

    lines = ["# Public names", "", "What `import optdyn as od` has.", "", "| | |", "|---|---|"]
    for name in optdyn.__all__:
        thing = getattr(optdyn, name)
        where = next(m for m in (f"optdyn.methods.{name}", str(thing.__module__)) if m in found)
        place = page_of(where, packages).removeprefix("reference/")
        lines.append(
            f"| [`od.{name}`]({place}) | {cell((thing.__doc__ or '').partition(chr(10))[0])} |"
        )
    return "\n".join(lines)


def outline() -> list[Any]:
    """The reference's entries of the navigation: packages, and modules within them."""
    found = modules()
    packages = {name for name, path in found.items() if path.name == "__init__.py"}

    def inside(name: str) -> list[Any]:
        parts: list[Any] = [{name: page_of(name, packages)}]
        for n in found:
            if n.rpartition(".")[0] == name:
                short = n.rpartition(".")[2]
                parts.append({short: inside(n) if n in packages else page_of(n, packages)})
        return parts

    return [{"Public names": "reference/names.md"}, {"optdyn": inside("optdyn")}]
