"""Images with labels, and text, as arrays, and the order in which a run sees them."""

from research.data.arrays import Data, DataError, Split
from research.data.loading import load
from research.data.order import batches, draws, independent, stratified, within

__all__ = [
    "Data",
    "DataError",
    "Split",
    "batches",
    "draws",
    "independent",
    "load",
    "stratified",
    "within",
]
