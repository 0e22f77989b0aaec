"""What the files say of commands and flags without being imported, which takes long."""

import ast
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parents[1]


@cache
def tree(module: str) -> ast.Module:
    """The syntax of a module, named as it is below `optdyn`."""
    return ast.parse(PACKAGE.joinpath(*module.split(".")).with_suffix(".py").read_text())


def doc(module: str) -> str:
    """The docstring of a module."""
    return ast.get_docstring(tree(module)) or ""


def flags(module: str) -> dict[str, str]:
    """What a module defines by `flags.DEFINE_...` or `add_argument`: {"--name": its help}."""
    found = {}
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            name = node.func.attr
            if name.startswith("DEFINE_") or name == "add_argument":
                more = [k.value for k in node.keywords if k.arg in ("help", "help_string")]
                given = [n.value for n in (*node.args, *more) if isinstance(n, ast.Constant)]
                first, *words = [text for text in given if isinstance(text, str)]
                about = words[-1] if words else ""
                found["--" * name.startswith("DEFINE_") + first] = about
    return found
