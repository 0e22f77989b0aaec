"""What there is to choose from: `optdyn list KIND [PREFIX]`.

KIND is one of models, data, optimizers, methods, laws, schedules, configs and keys; PREFIX keeps
the names that begin with it, as in `optdyn list keys strategy.`. Each line has a name and what it
is, that of a key its default and what `research/config.py` or the method's file says of it.
"""

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from launch import sources

Listed = Mapping[str, str]  # name: what it is, in a line


def configs() -> Listed:
    """The shipped config files."""
    return {name: _first(_doc(path.read_text())) for name, path in sources.configs().items()}


def keys() -> Listed:
    """The keys of a run's config, with their defaults."""
    from research.config import default

    values, found = default(), {}
    for name, about in sources.keys().items():
        value: Any = values
        for part in name.split("."):
            value = value[part]
        shown = "{}" if name.endswith("options") else repr(value)
        found[name] = f"= {shown}" + f"  {about}" * bool(about)
    return found


def models() -> Listed:
    from research import models

    return {name: _first(sources.doc(f"research.models.{name}")) for name in models.NAMES}


def data() -> Listed:
    return {
        "mnist5k": "5,000 MNIST images, which come with a dependency",
        "kjv": "the King James Bible, text",
        "tfds:NAME": "a data set that was prepared: optdyn prepare NAME",
        "folder:PATH": "idx, npz or array_record files of your own",
    }


def optimizers() -> Listed:
    import optax

    from research import optimizers

    public = [name for name in sorted(dir(optax)) if name[0].islower()]
    takes = [name for name in public if "learning_rate" in optimizers.arguments(name)]
    of_optax = {name: _first(inspect.getdoc(optimizers.maker(name))) for name in takes}
    return of_optax | {name: _first(inspect.getdoc(f)) for name, f in optimizers.OWN.items()}


def methods() -> Listed:
    return sources.methods()


def laws() -> Listed:
    from research.timeline import service

    drawn = {name: _first(inspect.getdoc(getattr(service, name))) for name in service.DRAWN}
    return drawn | {
        "trace": "As a CSV file says, columns worker,seconds: config.cluster.trace.",
        "geometric": "Independent staleness without a queue; of asynchronous only.",
        "measured": "As the real workers take; of dynamic_batch only.",
    }


def schedules() -> Listed:
    from research import optimizers

    about = {
        "constant": "The learning rate, after the warm-up.",
        "cosine": "Down to 0 along half a cosine, in decay_steps.",
        "linear": "Down to 0 along a line, in decay_steps.",
        "exponential": "Times decay_rate every decay_steps.",
    }
    return {name: about.get(name, "") for name in optimizers.SCHEDULES}


KINDS: dict[str, Callable[[], Listed]] = {
    "models": models,
    "data": data,
    "optimizers": optimizers,
    "methods": methods,
    "laws": laws,
    "schedules": schedules,
    "configs": configs,
    "keys": keys,
}


def main(arguments: Sequence[str]) -> int:
    kind, prefix, *more = [*arguments, "", ""]
    if kind not in KINDS or any(more):
        print(f"error: optdyn list KIND [PREFIX]: KIND is {', '.join(KINDS)}", file=sys.stderr)
        return 2
    found = {name: about for name, about in KINDS[kind]().items() if name.startswith(prefix)}
    if not found:
        print(f"error: there are no {kind} that begin with {prefix!r}", file=sys.stderr)
        return 2
    width = max(map(len, found))
    for name, about in found.items():
        print(f"{name:{width}}  {about}".rstrip())
    return 0


def _first(text: str | None) -> str:
    return (text or "").split("\n")[0]


def _doc(source: str) -> str:
    import ast

    return ast.get_docstring(ast.parse(source)) or ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
