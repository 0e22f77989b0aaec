"""Mini-batch, algorithms, devices and servers under a memory bound (arXiv 1709.06622)."""
