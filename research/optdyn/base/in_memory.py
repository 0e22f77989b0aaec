"""Names for things that Python passes to an experiment: functions, modules, arrays.

A config has names only. A function that can be imported has one; other things are attributes of
this module as long as the process lives, such as `a_function_1`.
"""

import itertools
import pickle
import sys
from collections.abc import Hashable
from typing import Any

from optdyn.base.errors import MOST_CHARACTERS, ConfigError, one_line
from optdyn.base.lookup import Is, digest, kind_in_memory

_names = dict[tuple[Hashable, ...], str]()


class Name(str):
    """The name of a thing in this module. Pickling it pickles the thing, too."""

    def __reduce__(self) -> Any:
        name = self.rpartition(":")[2]
        try:
            thing = pickle.dumps(globals()[name])
        except Exception as error:  # pickle's, or any of the user's class
            raise ConfigError(
                f"{kind_in_memory(self)} of an experiment: cannot be pickled "
                f"({one_line(error, MOST_CHARACTERS)}); name it instead, as 'my_file.py:NAME'"
            ) from error
        return _unpickle, (thing, name)

    def __deepcopy__(self, _: Any) -> "Name":
        return self


def _unpickle(pickled: bytes, name: str) -> str:
    thing = pickle.loads(pickled)
    here = globals().setdefault(name, thing)
    if here is thing or digest(here) == digest(thing):
        return Name(f"{__name__}:{name}")
    return name_of(thing, name.rpartition("_")[0])


def name_of(thing: object, kind: str = "", *parts: object) -> str:
    """Returns `MODULE:NAME`, by which `lookup.find` finds this very thing; a text as it is.

    `kind` is for messages; `parts` are what it was made from, if each call makes a new one.
    """
    if isinstance(thing, str):
        return thing
    module, name = getattr(thing, "__module__", None), getattr(thing, "__qualname__", "")
    if name and getattr(sys.modules.get(module or ""), name, None) is thing:
        return f"{module}:{name}"
    key = type(thing), *map(Is, parts or (thing,))
    if key not in _names:
        kind = (kind or f"a {type(thing).__name__}").replace(" ", "_")
        numbered = (f"{kind}_{number}" for number in itertools.count(1))
        _names[key] = next(name for name in numbered if name not in globals())
        globals()[_names[key]] = thing
    return Name(f"{__name__}:{_names[key]}")
