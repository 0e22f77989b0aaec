"""Images with labels and text as arrays, and the order in which a run sees them."""

from optdyn.problem.data.arrays import DataError, Dataset, Split
from optdyn.problem.data.kinds import Data

__all__ = ["Data", "DataError", "Dataset", "Split"]
