"""What there is to choose from: `optdyn list KIND [PREFIX] [--json]`.

KIND is one of models, data, losses, metrics, optimizers, transforms, schedules, methods, names,
laws, configs and keys; `names` are other names of methods, and how each is asked for. PREFIX keeps
the names that begin with it, as in `optdyn list keys method.` and `optdyn list names rennala`.
Each line has a name and what it is, that of a key its default, what its field says, and last, if
not all models, data sets, optimizers, methods or laws have it, which do. A word after `keys`, as in
`optdyn list keys momentum`, finds every key that has it in its name or in its line.
`--json` prints an object, {name: what it is}.
"""

import ast
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from optdyn.base.errors import meant
from optdyn.cli import configs as shipped

Listed = Mapping[str, str]  # name: what it is, in a line


def configs() -> Listed:
    """The shipped config files."""
    return {name: _first(path.read_text()) for name, path in shipped.configs().items()}


def keys() -> Listed:
    """The keys of a run's config, with their defaults."""
    from optdyn.cli.keys import keys as known  # here, for it takes long

    found = {}
    for name, (about, default, owners) in known().items():
        whose = f"  ({', '.join(owners)})" * bool(owners)
        found[name] = f"= {default!r}" + f"  {about}" * bool(about) + whose
    return found


def chosen(kind: str, found: Listed, text: str) -> Listed:
    """The names that begin with `text`; keys also where the word is anywhere in name or line."""
    begin = {name: about for name, about in found.items() if name.startswith(text)}
    if kind != "keys" or re.search(r"\W", text):
        return begin
    return {n: about for n, about in found.items() if text.lower() in f"{n} {about}".lower()}


def registered(kind: str) -> Listed:
    """What can be chosen by name in a config."""
    from optdyn.cli import registries  # here, for it takes long

    return registries.KINDS[kind]()


def other_name(name: str) -> str:
    """Which method is meant by a name that no method has here; '' if none."""
    from optdyn import methods  # here, for it takes long
    from optdyn.methods import names

    return names.meant(name, dict.fromkeys(methods.built_in()))


OF_CONFIGS = (
    *("models", "data", "losses", "metrics", "optimizers", "transforms", "schedules"),
    *("methods", "names", "laws"),
)
KINDS: dict[str, Callable[[], Listed]] = {
    **{kind: partial(registered, kind) for kind in OF_CONFIGS},
    "configs": configs,
    "keys": keys,
}


def main(arguments: Sequence[str]) -> int:
    in_json, words = "--json" in arguments, [word for word in arguments if word != "--json"]
    kind, prefix, *more = [*words, "", ""]
    if kind not in KINDS or any(more):
        said = f"KIND is {', '.join(KINDS)}{meant(kind, KINDS)}"
        print(f"error: optdyn list KIND [PREFIX] [--json]: {said}", file=sys.stderr)
        return 2
    found = chosen(kind, KINDS[kind](), prefix)
    if not found:
        have = "begin with" if kind != "keys" else "begin with or have"
        hint = other_name(prefix) if kind == "methods" else ""
        print(f"error: there are no {kind} that {have} {prefix!r}{hint}", file=sys.stderr)
        return 2
    if in_json:
        print(json.dumps(found, indent=2))
        return 0
    width = max(map(len, found))
    for name, about in found.items():
        print(f"{name:{width}}  {about}".rstrip())
    return 0


def _first(source: str) -> str:
    """The first line of a file's docstring."""
    return (ast.get_docstring(ast.parse(source)) or "").split("\n")[0]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
