"""``python -m isochrone``: the command line where its script is not on the path."""

from isochrone.cli.main import app

if __name__ == "__main__":
    app(prog_name="isochrone")
