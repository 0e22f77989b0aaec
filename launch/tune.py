"""`optdyn tune`: groups, momentum and learning rate, chosen in training."""

from optdyn.cli.main import run

if __name__ == "__main__":
    run("tune")
