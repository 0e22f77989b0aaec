"""What every part is built on: refusals, fields of values, lookup by name, files."""
