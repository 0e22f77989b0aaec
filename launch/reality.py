"""`optdyn reality`: compare a race of real workers with theory."""

from optdyn.cli.main import run

if __name__ == "__main__":
    run("reality")
