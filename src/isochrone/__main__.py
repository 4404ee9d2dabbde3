"""``python -m isochrone``: the command line, for environments whose scripts are not on the path."""

from isochrone.cli.main import app

if __name__ == "__main__":
    app(prog_name="isochrone")
