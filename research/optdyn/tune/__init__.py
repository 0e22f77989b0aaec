"""Groups, momentum and learning rate, chosen while training."""
