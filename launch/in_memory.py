"""Names for what is given to an experiment itself, and not by a name: a function, a module, arrays.

A config holds names. A function that can be imported has one; of anything else this module keeps
the thing, as long as the process lives, so that `optdyn.launch.in_memory:NAME` finds it. A NAME is
made of what the thing is (`cache_keys.text`), so that runs of several processes have it alike for
the same and for nothing else.
"""

import hashlib
import sys

from optdyn.basics.cache_keys import Is, text

_names = dict[Is, str]()


def name_of(thing: object) -> str:
    """`MODULE:NAME`, by which `lookup.find` finds this very thing; of a text the text itself."""
    if isinstance(thing, str):
        return thing
    module, name = getattr(thing, "__module__", None), getattr(thing, "__qualname__", "")
    if name and getattr(sys.modules.get(module or ""), name, None) is thing:
        return f"{module}:{name}"
    if Is(thing) not in _names:
        mark = hashlib.sha256(text(thing).encode()).hexdigest()[:6]
        name = held = f"{type(thing).__name__}_{mark}"
        while held in globals():  # of another thing whose difference does not show
            held = f"{name}_{len(_names)}"
        _names[Is(thing)] = held
        globals()[held] = thing
    return f"{__name__}:{_names[Is(thing)]}"
