"""`optdyn report`: a page of what was run."""

from optdyn.cli.main import run

if __name__ == "__main__":
    run("report")
