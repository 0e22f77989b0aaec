"""Implicit momentum of recorded runs: `python analysis/implicit_momentum.py DIR`."""

from optdyn.cli.main import run

if __name__ == "__main__":
    run("momentum")
