"""`optdyn price`: seconds of methods on a cluster, without training."""

from optdyn.cli.main import run

if __name__ == "__main__":
    run("price")
