"""The pages of all public functions, made of their docstrings: `make docs`.

    python -m launch.docs [--output=workdirs/docs]

Run in a checkout, with `pip install -e ".[docs]"`. Open
`index.html` there; it requests nothing from a network.
"""

import pkgutil
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

from absl import app, flags

PACKAGES = ("optdyn", "optdyn.analysis", "optdyn.launch")
LEFT_OUT = ("optdyn.launch.docs", "optdyn.analysis.notebooks")
OUTPUT = flags.DEFINE_string("output", "workdirs/docs", "Folder that the pages are written to.")


def modules() -> Iterator[str]:
    """The names of all that have a page, packages before what is in them."""
    for package in map(import_module, PACKAGES):
        yield package.__name__
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            yield found.name


def main(_: list[str]) -> None:
    import pdoc  # only here, as it is an extra

    pdoc.render.configure(
        docformat="markdown",
        show_source=True,
        template_directory=Path(__file__).with_name("templates"),
    )
    without = [f"!{name}" for name in LEFT_OUT]
    pdoc.pdoc(*modules(), *without, output_directory=Path(OUTPUT.value))
    print(Path(OUTPUT.value) / "index.html")


if __name__ == "__main__":
    app.run(main)
