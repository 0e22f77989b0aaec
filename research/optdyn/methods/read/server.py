"""A server of workers that take local steps: what it makes of the message of one of them.

theta <- theta - eta V(G)      G = theta_read - w_i, as in `async_local_sgd.py`
"""

from collections.abc import Callable
from typing import NamedTuple

from optdyn.base.trees import Choice, Tree
from optdyn.core import Params


class Kept(NamedTuple):
    """What a server has beside theta."""

    momentum: Params  # m
    waiting: Params  # Delta
    optimizer: Tree  # the state of an optax optimizer, or ()


class ServerRule(NamedTuple):
    """`step(G, kept, c) -> V, kept`, where c are the numbers of this exchange."""

    step: Callable[[Params, Kept, Choice], tuple[Params, Kept]]
    init: Callable[[Params], Tree] = lambda params: ()  # its optimizer's state at the beginning
