"""`optdyn papers`: judge the papers' claims."""

from optdyn.cli.main import run

if __name__ == "__main__":
    run("papers")
