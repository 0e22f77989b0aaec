"""`optdyn report`: write a page on runs."""

from optdyn.cli.main import run

if __name__ == "__main__":
    run("report")
