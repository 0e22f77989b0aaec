"""Methods that say what nodes exchange that have parameters of their own."""
