"""Updates and seconds to a target loss."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.efficiency import to_target


@pytest.mark.parametrize(
    ("target", "updates", "seconds"),
    [(0.4, 14, 2.6), (0.5, 10, 1), (1.0, 0, 0), (3.0, 0, 0), (0.25, 20, 5), (0.2, np.inf, np.inf)],
)
def test_updates_to_a_target(target, updates, seconds):
    log = pd.DataFrame(
        {"step": [0, 10, 15, 20], "simulated_seconds": [0.0, 1.0, 2.0, 5.0]}
        | {"train_loss": [1.0, 0.5, np.nan, 0.25]}
    )
    # 0.4 lies 0.4 of the way from (10, 1 s) to (20, 5 s); rounding of a few float64 operations.
    assert to_target(log, target) == pytest.approx((updates, seconds), rel=1e-12)


@given(
    st.lists(st.floats(0.01, 10), min_size=1, max_size=8), st.floats(0.01, 10), st.floats(0.01, 10)
)
def test_a_lower_target_is_never_reached_earlier(losses, one, other):
    steps = np.arange(len(losses))
    log = pd.DataFrame({"step": steps, "simulated_seconds": steps, "train_loss": losses})
    late, early = (to_target(log, t)[0] for t in sorted((one, other)))
    assert late >= early - 1e-9  # rounding of the interpolation
