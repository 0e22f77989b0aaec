"""Real asynchrony: workers that race, and the server that applies the strategy's own update."""
