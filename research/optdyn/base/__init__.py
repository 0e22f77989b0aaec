"""The foundations: errors, checked fields, user code by name, files, processes and seeds."""
