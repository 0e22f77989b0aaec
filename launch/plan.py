"""`optdyn plan`: plan mini-batch, algorithms and devices."""

from optdyn.cli.main import run

if __name__ == "__main__":
    run("plan")
