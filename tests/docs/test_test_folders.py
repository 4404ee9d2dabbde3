"""Folders of tests stand on the import path: none may have the name of a library that another one looks for."""

from __future__ import annotations

from pathlib import Path

#: Libraries that installed ones import where they find them. A folder is found as an empty package of that name.
OPTIONAL = frozenset(
    [
        "boto3",
        "cupy",
        "cv2",
        "jax",
        "onnx",
        "pandas",
        "pyarrow",
        "ray",
        "requests",
        "scipy",
        "tensorflow",
        "tensorrt",
        "torch",
        "torchvision",
        "transformers",
        "triton",
        "uvloop",
        "yaml",
    ]
)


def test_no_folder_of_tests_passes_for_a_library() -> None:
    tests = Path(__file__).parents[1]
    folders = {path for path in tests.rglob("*") if path.is_dir() and path.name in OPTIONAL}
    assert not folders
