"""`optdyn config`: print a config, or the differences of two."""

from optdyn.cli.main import run

if __name__ == "__main__":
    run("config")
