"""Model averaging, also called local SGD: nodes train by themselves and average what they have.

    x_i <- 1/P sum_j x_j        every H updates, of P nodes

This is the rule of `outer.py` with the weights 0 and 1, and nodes wait for it. H = 1 is synchronous
SGD, but not with Adam. Post-local SGD (Lin et al., arXiv 1808.07217) has H = 1 in its first T_0
updates. Streaming (Douillard et al., arXiv 2501.18512) does the same with fragments of the
parameters, which take turns, and with what was sent tau updates before:

    x_i <- (1 - a) 1/P sum_j x_j(t - tau) + a x_i
"""

import optax
from jax import lax

from optdyn.strategies import averaged, compression
from optdyn.strategies.base import Strategy
from optdyn.strategies.meetings import clock
from optdyn.strategies.messages import Messages
from optdyn.strategies.method import Keys, Method
from optdyn.strategies.outer import outer
from optdyn.timeline.service import DRAWN


def averaging(
    inner: Strategy,
    keys: Keys,
    senders: str | None = None,
    optimizer: optax.GradientTransformation | None = None,
) -> Strategy:
    """The rule around what a node does by itself, with an outer `optimizer`; without, the mean."""
    keys = {**METHOD.keys, **keys}
    a = keys["mixing"]
    return outer(
        inner,
        lambda waited: (a * lax.axis_size("node"), 1 - a),
        optimizer,
        Messages(compression=compression.make(keys), senders=senders),
        fragments=keys["fragments"],
        inner_state=keys["inner_state"],
    )


METHOD = Method(
    keys={
        "period": 8,  # H, updates from one average of a fragment to the next
        "synchronous_updates": 0,  # T_0, the first updates, with an average after each
        "fragments": 1,  # of the parameters, which take turns; at most the period
        "delay": 0,  # tau, updates from the sending of a fragment to its receipt
        "mixing": 0.0,  # a, the part that nodes keep of their own parameters
        "inner_state": "kept",  # 'averaged', 'reset': of a node's optimizer where it receives
        "compression": "",  # of messages: 'bfloat16', 'top_k', 'sign', 'powersgd'
        "compression_share": 0.01,  # top_k: of an array's numbers that are sent
        "compression_rank": 2,  # powersgd: r, columns of the two factors of a matrix
    },
    compiled=(
        "fragments",
        "mixing",
        "inner_state",
        "compression",
        "compression_share",
        "compression_rank",
    ),
    mix=averaging,
    clock=clock,
    laws=DRAWN,
    cluster=(
        *("overlap", "speeds", "latencies", "bandwidths"),
        *("regions", "diurnal", "presence"),
    ),
    info=("sent_bytes",),
    kept_inside=averaged.kept_inside,
    values=averaged.values,
    check=averaged.check,
)
