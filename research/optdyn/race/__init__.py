"""Real asynchrony: workers that race, and the server that applies the method's own update."""
