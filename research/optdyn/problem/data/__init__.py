"""Images with labels, and text, as arrays, and the order in which a run sees them."""

from optdyn.problem.data.arrays import DataError, Dataset, Split
from optdyn.problem.data.loading import load
from optdyn.problem.data.order import away, batches, draws, independent, stratified
from optdyn.problem.data.shards import contiguous, dirichlet, sizes

__all__ = [
    "DataError",
    "Dataset",
    "Split",
    "away",
    "batches",
    "contiguous",
    "dirichlet",
    "draws",
    "independent",
    "load",
    "sizes",
    "stratified",
]
