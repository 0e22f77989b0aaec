"""`optdyn cite`: print BibTeX of the papers that a run used."""

from optdyn.cli.main import run

if __name__ == "__main__":
    run("cite")
