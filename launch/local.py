"""`optdyn local`: run several processes on this machine as one job."""

from optdyn.cli.main import run

if __name__ == "__main__":
    run("local")
