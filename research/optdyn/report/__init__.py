"""What runs say: fits, tables and figures. Reads work directories only."""
