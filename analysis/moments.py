"""The momentum meter's estimator, for notebooks; `research/dynamics/moments.py` has its page."""

from optdyn.dynamics.moments import Fit, NotIdentified, Run, fit, moving_average

__all__ = ["Fit", "NotIdentified", "Run", "fit", "moving_average"]
