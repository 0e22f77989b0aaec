"""`optdyn export`: export runs to W&B or MLflow."""

from optdyn.cli.main import run

if __name__ == "__main__":
    run("export")
