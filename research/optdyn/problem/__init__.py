"""What is learned: models, data, losses, and what an example costs."""
