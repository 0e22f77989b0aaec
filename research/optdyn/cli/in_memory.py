"""Names for what is given to an experiment itself, and not by a name: a function, a module, arrays.

A config holds names. A function that can be imported has one; of anything else this module keeps
the thing, as long as the process lives, so that `optdyn.cli.in_memory:NAME` finds it. A NAME is
made of what the thing is (`cache_keys.text`), so that runs of several processes have it alike for
the same and for nothing else.
"""

import hashlib
import pickle
import sys
from collections.abc import Hashable
from typing import Any

from optdyn.base.cache_keys import same
from optdyn.base.errors import ConfigError
from optdyn.base.lookup import shown, words

OPTAX = "an optax transformation"
_names = dict[Hashable, str]()


class Name(str):
    """A name of what is kept here. A pickle of it has the thing too, which the name is worth."""

    def __reduce__(self) -> Any:
        try:
            thing = pickle.dumps(globals()[self.rpartition(":")[2]])
        except Exception as error:  # of any kind: pickle's, or of the user's class
            why = f"cannot be pickled ({shown(error)}); name it instead, as 'my_file.py:NAME'"
            raise ConfigError(f"{words(self)} of an experiment: {why}") from error
        return _unpickled, (thing, words(self))

    def __deepcopy__(self, _: Any) -> "Name":
        return self


def _unpickled(thing: bytes, said: str) -> str:
    return name_of(pickle.loads(thing), said)


def name_of(thing: object, said: str = "") -> str:
    """`MODULE:NAME`, by which `lookup.find` finds this very thing; of a text the text itself.

    Two things that are the same have one name, so what a notebook makes again goes on as before.
    `said` is what lines call it (`lookup.words`), by default its type.
    """
    if isinstance(thing, str):
        return thing
    module, name = getattr(thing, "__module__", None), getattr(thing, "__qualname__", "")
    if name and getattr(sys.modules.get(module or ""), name, None) is thing:
        return f"{module}:{name}"
    if (what := same(thing)) not in _names:
        mark = hashlib.sha256(what[0].encode()).hexdigest()[:6]
        name = held = f"{said or f'a {type(thing).__name__}'}_{mark}".replace(" ", "_")
        while held in globals():  # of another thing whose difference does not show
            held = f"{name}_{len(_names)}"
        _names[what] = held
        globals()[held] = thing
    return Name(f"{__name__}:{_names[what]}")
