"""The keys of a config, of all that can be chosen in it, from the fields of the classes."""

from dataclasses import Field
from operator import attrgetter
from typing import Any, NamedTuple

from optdyn.base.fields import Value, all_fields
from optdyn.experiment import Config
from optdyn.methods.method import Method, built_in

NAMES = {  # what a name is, by its section
    "model": "Model, of `optdyn list models` or your own.",
    "data": "Data set, of `optdyn list data` or your own.",
    "optimizer": "Optimizer of `optdyn list optimizers`, or your own.",
    "method": "A method (`optdyn list methods`), several joined by '+', or your own.",
    "cluster.service": "Law of the times that workers take, or your own.",
}


class Key(NamedTuple):
    """A key: what it is, its default, and which members of its union have it; () if all do."""

    about: str
    default: Any
    owners: tuple[str, ...] = ()


def keys() -> dict[str, Key]:
    """The keys by their dotted names, in order. Of several owners the first says what it is."""
    usual = Config()
    found = {name: _key(each) for name, each in all_fields(usual)}
    for root in Value.roots:
        found[root.key("name")] = Key(NAMES[root.section], attrgetter(root.section)(usual).name)
        owned = dict[str, list[str]]()
        for name, member in _members(root).items():
            for key, each in member.field_table().items():
                if "about" in each.metadata and key != "name":
                    found.setdefault(root.key(key), _key(each))
                    owned.setdefault(key, []).append(name)
        for key in owned.keys() - root.field_table().keys():
            at = root.key(key)
            found[at] = found[at]._replace(owners=tuple(owned[key]))
    return dict(sorted(found.items()))


def _key(field: Field[Any]) -> Key:
    return Key(field.metadata["about"], field.metadata["default"])


def _members(root: type[Value]) -> dict[str, type[Value]]:
    """The members of a union by their names, and the one of one's own, or of all others."""
    if root is Method:
        return {name: root.members[name] for name in built_in()}
    others = "others" if root.section == "optimizer" else "your own"
    return {**root.members, others: root.custom}
