"""Converts a fitted model of scikit-learn to a checkpoint of treelite, which the backend fil serves.

    python examples/sklearn_to_checkpoint.py model.pkl REPOSITORY/forest/1

The model is a pickle or a joblib file of a RandomForest, ExtraTrees, GradientBoosting, HistGradientBoosting or
IsolationForest estimator. **Reading a pickle runs the code in it**: convert only files that you made. The server reads
the checkpoint, which holds numbers alone. In a notebook, one line does the same without a pickle:

    treelite.sklearn.import_model(estimator).serialize("forest/1/checkpoint.tl")
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

try:
    import joblib
    import treelite
except ImportError as missing:
    sys.exit(
        f"sklearn_to_checkpoint: {missing}; install what it needs with: pip install scikit-learn 'isochrone[trees]'"
    )


def convert(source: Path, directory: Path) -> Path:
    """Write ``directory``/checkpoint.tl; return its path."""
    model = treelite.sklearn.import_model(joblib.load(source))
    directory.mkdir(parents=True, exist_ok=True)
    target = directory / "checkpoint.tl"
    model.serialize(target)
    return target


def main() -> None:
    parser = argparse.ArgumentParser(description="Convert a fitted model of scikit-learn for the backend fil.")
    parser.add_argument("source", type=Path, help="a pickle or joblib file that you made")
    parser.add_argument("directory", type=Path, help="the version's directory in the model repository")
    given = parser.parse_args()
    try:
        target = convert(given.source, given.directory)
    except Exception as error:  # of the file system, of joblib, of treelite
        sys.exit(f"sklearn_to_checkpoint: {given.source}: {error}")
    features = treelite.Model.deserialize(target).num_feature
    print(f"{target}: {features} features; config.pbtxt needs backend fil and model_type treelite_checkpoint")


if __name__ == "__main__":
    main()
