"""`optdyn race`: train with real workers that race."""

from optdyn.cli.main import run

if __name__ == "__main__":
    run("race")
