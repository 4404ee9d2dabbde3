"""``python -m bench.gpu.models DIRECTORY``: writes the model repository of the GPU benches.

Variants of a model (with and without graphs, with and without overlap) are models of their own that share the file.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from bench.gpu.models.repository import write_repository
from bench.gpu.models.specs import ENCODER_AOTI, FULL, MODELS, TINY, VARIANTS


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu.models", description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--models", default=",".join(MODELS), help=f"also {ENCODER_AOTI}")
    parser.add_argument("--variants", default=",".join(VARIANTS))
    parser.add_argument("--compile", default="", help="parameter of every model, such as max-autotune-no-cudagraphs")
    parser.add_argument("--tiny", action="store_true", help="small networks: does everything still work?")
    given = parser.parse_args()
    parameters = {"compile": given.compile} if given.compile else {}
    sizes = TINY if given.tiny else FULL
    write_repository(
        given.directory, given.device, sizes, given.models.split(","), given.variants.split(","), parameters
    )
    print(f"written: {given.directory}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
