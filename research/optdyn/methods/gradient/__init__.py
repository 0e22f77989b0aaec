"""Methods that say how a gradient is taken."""
