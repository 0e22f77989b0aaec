"""MindFlayer (Maranjyan, Shaikh Omar and Richtarik, arXiv 2410.04285): no gradient takes too long.

    x_{t+1} = x_t - alpha 1/K sum_j grad f_j(x_{t - tau_j})      j = 1, ..., K

A group that has not delivered after a times its mean service drops what it is at, and begins again
at the newest parameters, with a draw of its own. So an update is one of `buffered.py`, and only the
clock is new (`clock/several.py`). It pays where times have heavy tails: a service S that begins
again after a takes E min(S, a) / P(S <= a) in the mean. Without a limit it is `buffered`, and with
K = 1 and nobody waiting asynchronous SGD.

MindFlayer SGD takes all gradients at x_t (`waiting=k_batch_sync`) and gives each worker a number of
trials; here it goes on until K are there.
"""

from dataclasses import dataclass

from optdyn.base.fields import field
from optdyn.methods.read.buffered import Buffered


@dataclass(frozen=True)
class MindFlayer(Buffered, name="mindflayer"):
    allotted: float = field(
        0.0,
        "a, mean services after which a group begins again; 0: it never does.",
        at_least=0,
    )

    @property
    def limit(self) -> float:  # type: ignore[override]
        """a."""
        return self.allotted
