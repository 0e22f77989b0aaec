"""What is refused in a line, and signals at a log point."""

import signal

import pytest

from optdyn.base.errors import InputError
from optdyn.train.workdir import Metrics


def refusal(call, *given, error=InputError, **named):
    """The one line of it."""
    with pytest.raises(error) as caught:
        call(*given, **named)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def raise_at(patch, step, *signals):
    """Has the process signalled when the log point of that step is written, the first time."""
    append, left = Metrics.append, list(signals)

    def signalled(self, row):
        append(self, row)
        while left and row["step"] == step:
            signal.raise_signal(left.pop())

    patch.setattr(Metrics, "append", signalled)
