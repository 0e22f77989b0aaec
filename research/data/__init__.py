"""Images with labels, and text, as arrays, and the order in which a run sees them."""

from optdyn.data.arrays import Data, DataError, Split
from optdyn.data.loading import load
from optdyn.data.order import away, batches, draws, independent, stratified
from optdyn.data.shards import contiguous, dirichlet, sizes

__all__ = [
    "Data",
    "DataError",
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
