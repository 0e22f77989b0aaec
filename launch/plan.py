"""`optdyn plan`: mini-batch, algorithms and devices to train with."""

from optdyn.cli.main import run

if __name__ == "__main__":
    run("plan")
