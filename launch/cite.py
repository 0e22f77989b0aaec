from optdyn.cli.main import run

if __name__ == "__main__":
    run("cite")
