"""Images with labels, and text, as arrays in memory, and the order in which a run sees them."""

from research.data.arrays import Data, DataError
from research.data.loading import load
from research.data.order import batches, stratified

__all__ = ["Data", "DataError", "batches", "load", "stratified"]
