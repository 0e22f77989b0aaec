"""`optdyn completion`: a script that completes commands in a shell."""

from optdyn.cli.main import run

if __name__ == "__main__":
    run("completion")
