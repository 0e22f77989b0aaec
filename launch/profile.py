"""`optdyn profile`: profile an update on this machine."""

from optdyn.cli.main import run

if __name__ == "__main__":
    run("profile")
