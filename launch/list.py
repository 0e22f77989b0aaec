"""`optdyn list`: list what configs can name, shipped configs and keys."""

from optdyn.cli.main import run

if __name__ == "__main__":
    run("list")
