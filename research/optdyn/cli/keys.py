"""The keys of a config and of all members of its unions, from the fields of the classes."""

from dataclasses import Field
from operator import attrgetter
from typing import Any, NamedTuple

from optdyn.base.fields import Value, all_fields
from optdyn.experiment import Config
from optdyn.methods.method import Method, built_in

NAMES = {  # descriptions of `name`, by section
    "model": "Model, of `optdyn list models` or your own.",
    "data": "Data set, of `optdyn list data` or your own.",
    "optimizer": "Optimizer of `optdyn list optimizers`, or your own.",
    "method": "A method (`optdyn list methods`), several joined by '+', or your own.",
    "cluster.service": "Law of the times that workers take, or your own.",
}


class Key(NamedTuple):
    """A key's description and default, and the members of its union that have it; () for all."""

    about: str
    default: Any
    owners: tuple[str, ...] = ()


def keys() -> dict[str, Key]:
    """Returns the keys by dotted name, sorted; the first owner's field describes a key."""
    default = Config()
    found = {name: _key(field) for name, field in all_fields(default)}
    for root in Value.roots:
        found[root.key("name")] = Key(NAMES[root.section], attrgetter(root.section)(default).name)
        owners = dict[str, list[str]]()
        for name, member in _members(root).items():
            for key, field in member.field_table().items():
                if "about" in field.metadata and key != "name":
                    found.setdefault(root.key(key), _key(field))
                    owners.setdefault(key, []).append(name)
        for key in owners.keys() - root.field_table().keys():
            dotted = root.key(key)
            found[dotted] = found[dotted]._replace(owners=tuple(owners[key]))
    return dict(sorted(found.items()))


def _key(field: Field[Any]) -> Key:
    return Key(field.metadata["about"], field.metadata["default"])


def _members(root: type[Value]) -> dict[str, type[Value]]:
    if root is Method:
        return {name: root.members[name] for name in built_in()}
    others = "others" if root.section == "optimizer" else "your own"
    return {**root.members, others: root.custom}
