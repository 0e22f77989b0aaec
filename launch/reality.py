"""`optdyn reality`: a race of real workers, held against theory."""

from optdyn.cli.main import run

if __name__ == "__main__":
    run("reality")
