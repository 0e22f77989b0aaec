"""Names for what is given to an experiment itself, and not by a name: a function, a module, arrays.

A config holds names. A function that can be imported has one; of anything else this module keeps
the thing, as long as the process lives, so that `optdyn.base.in_memory:NAME` finds it. A NAME is of
its kind and counted, `a_function_1`; what is in the thing is told by its hash (`lookup.digest`).
"""

import itertools
import pickle
import sys
from collections.abc import Hashable
from typing import Any

from optdyn.base.errors import LONGEST, ConfigError, one_line
from optdyn.base.lookup import Is, digest, words

_names = dict[tuple[Hashable, ...], str]()


class Name(str):
    """A name of what is kept here. A pickle of it has the thing too, which the name is worth."""

    def __reduce__(self) -> Any:
        name = self.rpartition(":")[2]
        try:
            thing = pickle.dumps(globals()[name])
        except Exception as error:  # of any kind: pickle's, or of the user's class
            why = f"cannot be pickled ({one_line(error, LONGEST)}); name it instead, as "
            why += "'my_file.py:NAME'"
            raise ConfigError(f"{words(self)} of an experiment: {why}") from error
        return _unpickled, (thing, name)

    def __deepcopy__(self, _: Any) -> "Name":
        return self


def _unpickled(pickled: bytes, name: str) -> str:
    """The name of a thing of another process: that of there, if here it is free or the same."""
    thing = pickle.loads(pickled)
    here = globals().setdefault(name, thing)
    if here is thing or digest(here) == digest(thing):
        return Name(f"{__name__}:{name}")
    return name_of(thing, name.rpartition("_")[0])


def name_of(thing: object, kind: str = "", *of: object) -> str:
    """`MODULE:NAME`, by which `lookup.find` finds this very thing; of a text the text itself.

    `kind` is what lines call it (`lookup.words`), by default its type; `of` the objects that it was
    made of, if it is made anew each time.
    """
    if isinstance(thing, str):
        return thing
    module, name = getattr(thing, "__module__", None), getattr(thing, "__qualname__", "")
    if name and getattr(sys.modules.get(module or ""), name, None) is thing:
        return f"{module}:{name}"
    key = type(thing), *map(Is, of or (thing,))
    if key not in _names:
        kind = (kind or f"a {type(thing).__name__}").replace(" ", "_")
        counted = (f"{kind}_{number}" for number in itertools.count(1))
        _names[key] = next(name for name in counted if name not in globals())
        globals()[_names[key]] = thing
    return Name(f"{__name__}:{_names[key]}")
