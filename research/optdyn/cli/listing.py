"""Lists what a config can name: `optdyn list KIND [PREFIX] [--json]`.

KIND is one of models, data, losses, metrics, optimizers, transforms, schedules, methods, names,
laws, configs and keys; `names` are other names of methods and the flags for them. PREFIX selects
names that begin with it, as in `optdyn list keys method.` and `optdyn list names rennala`. A line
has a name and a description; that of a key has its default and description, and the models, data
sets, optimizers, methods or laws that have it if not all do. A word after `keys`, as in
`optdyn list keys momentum`, also finds keys with it in their names or descriptions. `--json` prints
an object, {name: description}.
"""

import ast
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from optdyn.base.errors import did_you_mean, print_error
from optdyn.cli import configs as shipped

Listed = Mapping[str, str]  # descriptions of one line by name


def registry(kind: str) -> Listed:
    from optdyn import methods, optimizers  # here, for they take long
    from optdyn.clock.service import Law
    from optdyn.methods import names
    from optdyn.optimizers import schedules
    from optdyn.problem import losses
    from optdyn.problem.data.kinds import Data
    from optdyn.problem.models import Model

    if kind == "names":
        return {name: names.flags(name) for name in names.NAMES}
    things: Mapping[str, object] = {
        "models": Model.members,
        "data": Data.members,
        "losses": losses.LOSSES,
        "metrics": losses.METRICS,
        # Some of optax are partial functions, which have the line of the function.
        "optimizers": {n: getattr(f, "func", f) for n, f in optimizers.known().items()},
        "transforms": optimizers.TRANSFORMS,
        "schedules": schedules.SCHEDULES,
        "methods": {name: methods.load(name) for name in methods.built_in()},
        "laws": Law.members,
    }[kind]
    return {
        name: _first_line(getattr(thing, "__doc__", "") or "") for name, thing in things.items()
    }


def configs() -> Listed:
    files = shipped.configs()
    docs = {name: ast.get_docstring(ast.parse(path.read_text())) for name, path in files.items()}
    return {name: _first_line(text or "") for name, text in docs.items()}


def keys() -> Listed:
    from optdyn.cli.keys import keys as known  # here, for it takes long

    found = {}
    for name, (about, default, owners) in known().items():
        suffix = f"  ({', '.join(owners)})" * bool(owners)
        found[name] = f"= {default!r}" + f"  {about}" * bool(about) + suffix
    return found


REGISTERED = (
    *("models", "data", "losses", "metrics", "optimizers", "transforms", "schedules"),
    *("methods", "names", "laws"),
)
KINDS: dict[str, Callable[[], Listed]] = {
    **{kind: partial(registry, kind) for kind in REGISTERED},
    "configs": configs,
    "keys": keys,
}


def main(arguments: Sequence[str]) -> int:
    in_json, words = "--json" in arguments, [word for word in arguments if word != "--json"]
    kind, prefix, *more = [*words, "", ""]
    if kind not in KINDS or any(more):
        kinds = f"KIND is {', '.join(KINDS)}{did_you_mean(kind, KINDS)}"
        return print_error(f"optdyn list KIND [PREFIX] [--json]: {kinds}")
    found = select(kind, KINDS[kind](), prefix)
    if not found:
        have = "begin with" if kind != "keys" else "begin with or have"
        hint = ""
        if kind == "methods":
            from optdyn.methods import built_in, names

            hint = names.meant(prefix, dict.fromkeys(built_in()))
        return print_error(f"there are no {kind} that {have} {prefix!r}{hint}")
    if in_json:
        print(json.dumps(found, indent=2))
        return 0
    width = max(map(len, found))
    for name, about in found.items():
        print(f"{name:{width}}  {about}".rstrip())
    return 0


def select(kind: str, found: Listed, text: str) -> Listed:
    """Returns the names that begin with `text`; also keys with the word in name or description."""
    begin = {name: about for name, about in found.items() if name.startswith(text)}
    if kind != "keys" or re.search(r"\W", text):
        return begin
    return {n: about for n, about in found.items() if text.lower() in f"{n} {about}".lower()}


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
