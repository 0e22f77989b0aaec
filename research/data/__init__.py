"""Images with labels, and text, as arrays, and the order in which a run sees them."""

from research.data.arrays import Data, DataError, Split
from research.data.loading import load
from research.data.order import away, batches, draws, independent, stratified
from research.data.shards import contiguous, dirichlet, sizes

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
