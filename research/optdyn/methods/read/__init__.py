"""Methods that say at which parameters a gradient is taken, and who arrives when."""
