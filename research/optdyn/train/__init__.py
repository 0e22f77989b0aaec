"""One run: everything before its first update, the loop over updates, and what is kept of it."""
