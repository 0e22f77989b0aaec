"""The keys of a config, of all that can be chosen in it, from the fields of the classes."""

from collections.abc import Iterator
from typing import Any

from optdyn.base.fields import Value, default_of, every_field
from optdyn.clock.service import Law, OwnLaw
from optdyn.experiment import Experiment
from optdyn.methods.method import Method, built_in
from optdyn.optimizers.kinds import Optax, Optimizer
from optdyn.problem.data.kinds import Data, OwnData
from optdyn.problem.models import Model, OwnModel

UNIONS: dict[str, tuple[type[Value], str]] = {
    "model": (Model, "Model, of `optdyn list models` or your own."),
    "data": (Data, "Data set, of `optdyn list data` or your own."),
    "optimizer": (Optimizer, "Optimizer of `optdyn list optimizers`, or your own."),
    "method": (Method, "A method (`optdyn list methods`), several joined by '+', or your own."),
    "cluster.service": (Law, "Law of the times that workers take, or your own."),
}
OWN: dict[type[Value], type[Value]] = {
    Model: OwnModel,
    Data: OwnData,
    Optimizer: Optax,
    Law: OwnLaw,
}


def keys() -> dict[str, tuple[str, Any, tuple[str, ...]]]:
    """{dotted key: (what it is, its default, which ones of its union have it)}.

    () are the owners of a key that all have.
    """
    usual = Experiment()
    found: dict[str, tuple[str, Any, tuple[str, ...]]] = {}
    for name, each in every_field(usual):
        found[name] = each.metadata["about"], default_of(each), ()
    for section, (root, about) in UNIONS.items():
        default = usual.cluster.service if section == "cluster.service" else getattr(usual, section)
        found[f"{section}.name"] = about, default.name, ()
        shared = root.field_table()
        for name, kind in _members(root):
            for key, each in kind.field_table().items():
                if "about" not in each.metadata or key == "name":
                    continue
                words, value, owners = found.get(f"{section}.{key}", ("", None, ()))
                of = () if key in shared else (*owners, name)
                found[f"{section}.{key}"] = (
                    words or each.metadata["about"],
                    (value if words else default_of(each)),
                    tuple(dict.fromkeys(of)),
                )
    return dict(sorted(found.items()))


def _members(root: type[Value]) -> Iterator[tuple[str, type[Value]]]:
    """The ones of a union by their names, and those of one's own, or of optax."""
    if root is Method:
        yield from ((name, Method.members[name]) for name in built_in())
        return
    yield from root.members.items()
    yield "others" if root is Optimizer else "your own", OWN[root]
