"""`optdyn tune`: tune groups, momentum and learning rate during training."""

from optdyn.cli.main import run

if __name__ == "__main__":
    run("tune")
