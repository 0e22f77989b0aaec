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

from optdyn.base.errors import did_you_mean, print_error
from optdyn.cli import configs as shipped

Listed = Mapping[str, str]  # name: what it is, in a line


def registered(kind: str) -> Listed:
    """What can be chosen by name in a config, and the first line that each says of itself."""
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
        # Some of optax are another with some arguments fixed, whose line they then have.
        "optimizers": {n: getattr(f, "func", f) for n, f in optimizers.known().items()},
        "transforms": optimizers.TRANSFORMS,
        "schedules": schedules.SCHEDULES,
        "methods": {name: methods.load(name) for name in methods.built_in()},
        "laws": Law.members,
    }[kind]
    return {name: _first(getattr(thing, "__doc__", "") or "") for name, thing in things.items()}


def configs() -> Listed:
    """The shipped config files."""
    files = shipped.configs()
    docs = {name: ast.get_docstring(ast.parse(path.read_text())) for name, path in files.items()}
    return {name: _first(text or "") for name, text in docs.items()}


def keys() -> Listed:
    """The keys of a run's config, with their defaults."""
    from optdyn.cli.keys import keys as known  # here, for it takes long

    found = {}
    for name, (about, default, owners) in known().items():
        whose = f"  ({', '.join(owners)})" * bool(owners)
        found[name] = f"= {default!r}" + f"  {about}" * bool(about) + whose
    return found


REGISTERED = (
    *("models", "data", "losses", "metrics", "optimizers", "transforms", "schedules"),
    *("methods", "names", "laws"),
)
KINDS: dict[str, Callable[[], Listed]] = {
    **{kind: partial(registered, kind) for kind in REGISTERED},
    "configs": configs,
    "keys": keys,
}


def main(arguments: Sequence[str]) -> int:
    in_json, words = "--json" in arguments, [word for word in arguments if word != "--json"]
    kind, prefix, *more = [*words, "", ""]
    if kind not in KINDS or any(more):
        said = f"KIND is {', '.join(KINDS)}{did_you_mean(kind, KINDS)}"
        return print_error(f"optdyn list KIND [PREFIX] [--json]: {said}")
    found = chosen(kind, KINDS[kind](), prefix)
    if not found:
        have = "begin with" if kind != "keys" else "begin with or have"
        hint = _method_meant(prefix) if kind == "methods" else ""
        return print_error(f"there are no {kind} that {have} {prefix!r}{hint}")
    if in_json:
        print(json.dumps(found, indent=2))
        return 0
    width = max(map(len, found))
    for name, about in found.items():
        print(f"{name:{width}}  {about}".rstrip())
    return 0


def chosen(kind: str, found: Listed, text: str) -> Listed:
    """The names that begin with `text`; keys also where the word is anywhere in name or line."""
    begin = {name: about for name, about in found.items() if name.startswith(text)}
    if kind != "keys" or re.search(r"\W", text):
        return begin
    return {n: about for n, about in found.items() if text.lower() in f"{n} {about}".lower()}


def _method_meant(name: str) -> str:
    """The end of a line on a name that no method has here, where one is known by it; else ''."""
    from optdyn import methods
    from optdyn.methods import names

    return names.meant(name, dict.fromkeys(methods.built_in()))


def _first(text: str) -> str:
    return text.strip().partition("\n")[0]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
