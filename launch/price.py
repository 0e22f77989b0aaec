"""`optdyn price`: price methods on a cluster in seconds, without training."""

from optdyn.cli.main import run

if __name__ == "__main__":
    run("price")
