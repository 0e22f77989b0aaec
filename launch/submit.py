"""`optdyn submit`: submit shards of a grid as jobs."""

from optdyn.cli.main import run

if __name__ == "__main__":
    run("submit")
