"""`optdyn list`: what can be named in a config, shipped configs, keys."""

from optdyn.cli.main import run

if __name__ == "__main__":
    run("list")
