"""`optdyn config`: a config as it is resolved, or what differs in two."""

from optdyn.cli.main import run

if __name__ == "__main__":
    run("config")
