"""`optdyn prepare`: prepare a data set for config.data.name=tfds."""

from optdyn.cli.main import run

if __name__ == "__main__":
    run("prepare")
