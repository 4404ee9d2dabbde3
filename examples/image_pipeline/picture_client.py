"""Sends a picture to ``image_classification`` and prints its labels: ``python …/picture_client.py [FILE]``.

With a file, that picture; without one, a picture that is made here.
"""

from __future__ import annotations

import argparse
import io
import sys
from pathlib import Path

import numpy as np

try:
    from PIL import Image
except ImportError:
    sys.exit("client: Pillow is missing; install it with: pip install pillow")
try:
    from tritonclient import http
except (ImportError, RuntimeError):  # the second: it is there, without its http part
    sys.exit("client: tritonclient's http part is missing; install it with: pip install 'tritonclient[http]'")
from tritonclient.utils import InferenceServerException


def picture(colour: str = "tomato", width: int = 640, height: int = 480, kind: str = "JPEG") -> bytes:
    """A file with shades of a colour, and some noise: compressed as a photograph would be."""
    random = np.random.default_rng(1)
    shades = np.asarray(Image.new("RGB", (width, height), colour), np.float32)
    shades = shades * np.linspace(0.8, 1, width, dtype=np.float32)[:, None] + random.normal(0, 8, shades.shape)
    file = io.BytesIO()
    Image.fromarray(shades.clip(0, 255).astype(np.uint8)).save(file, kind)
    return file.getvalue()


def classify(url: str, content: bytes) -> list[tuple[str, float]]:
    """The labels of a picture, the most probable first, with their probabilities."""
    image = http.InferInput("image", [1, 1], "BYTES")
    image.set_data_from_numpy(np.array([[content]], np.object_))
    client = http.InferenceServerClient(url)
    try:
        answer = client.infer("image_classification", [image])
    finally:
        client.close()
    labels, scores = answer.as_numpy("labels"), answer.as_numpy("scores")
    return [(label.decode(), float(score)) for label, score in zip(labels[0], scores[0], strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description="Classify a picture.")
    parser.add_argument("file", nargs="?", type=Path, help="a JPEG or PNG file; without: a picture made here")
    parser.add_argument("--url", default="localhost:8000", help="of the server (default: %(default)s)")
    given = parser.parse_args()
    try:
        content = given.file.read_bytes() if given.file else picture()
        found = classify(given.url, content)
    except (OSError, InferenceServerException) as error:
        sys.exit(f"client: {error}")
    for label, score in found:
        print(f"{label:10} {score:.3f}")


if __name__ == "__main__":
    main()
