"""One target under atheris, in a process of its own: libFuzzer ends its process, and instrumentation cannot be undone.

``python -m fuzz.guided TARGET SECONDS DIRECTORY``; the parent is ``fuzz.__main__``. The directory gets the inputs that
reached new code (``corpus``), one that breaks the promise for each cause (``found``), and ``runs``. A finding does not
end the run.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import atheris

# Imports inside the block are compiled with counters: our code, not that of libraries or of the fuzzer itself.
with atheris.instrument_imports(include=["isochrone"], enable_loader_override=False):
    from fuzz.targets import TARGETS

from fuzz.findings import cause
from fuzz.target import MAX_BYTES

#: Seconds after which one input counts as a hang, and the most memory of the process in MiB.
_HANG, _MEMORY = 20, 3000


def main() -> None:
    name, seconds, place = sys.argv[1:4]
    target = next(each for each in TARGETS if each.name == name)
    directory = Path(place)
    corpus, found = directory / "corpus", directory / "found"
    corpus.mkdir()
    found.mkdir()
    for index, data in enumerate(target.inputs()):
        (corpus / f"seed-{index:04}").write_bytes(data[:MAX_BYTES])
    # Warnings of our code about input would be the output of the run.
    logging.disable()
    causes: set[str] = set()

    def run(data: bytes) -> None:
        try:
            target.check(data)
        except Exception as error:
            known = cause(error)
            if known not in causes:
                causes.add(known)
                (found / f"{len(causes):03}").write_bytes(data)
                print(f"FOUND {known}: {error}"[:300], file=sys.stderr, flush=True)

    options = [
        *(f"-max_total_time={seconds}", f"-max_len={MAX_BYTES}", f"-timeout={_HANG}", f"-rss_limit_mb={_MEMORY}"),
        *(f"-artifact_prefix={found}/", "-seed=1", "-print_final_stats=1", "-verbosity=1", "-reload=0"),
    ]
    atheris.Setup(["fuzz", *options, str(corpus)], run)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
