"""The commands of a checkout, a script each: `python -m launch.train ...` is `optdyn train ...`."""

import optdyn.cli  # noqa: F401  # first of all, for what it says of Ctrl-C
