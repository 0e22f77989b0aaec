"""Images with labels, and text, as arrays, and the order in which a run sees them."""

from research.data.arrays import Data, DataError, Split
from research.data.loading import load
from research.data.order import away, batches, draws, independent, stratified

__all__ = [
    "Data",
    "DataError",
    "Split",
    "away",
    "batches",
    "draws",
    "independent",
    "load",
    "stratified",
]
