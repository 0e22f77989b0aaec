"""Models, data and losses, and the cost of an example."""
