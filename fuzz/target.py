"""A target: one parser, the promise that inputs are tried against, and inputs to begin with."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from isochrone.errors import IsochroneError

CORPUS = Path(__file__).parent / "corpus"

#: Inputs above this size find nothing that smaller ones do not, and are slow.
MAX_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Target:
    """``check`` raises an exception for an input that breaks the promise; what it returns is ignored."""

    name: str
    #: The modules that are tried, for the reader and for the table in docs/fuzzing.md.
    parsers: tuple[str, ...]
    #: What must hold for every input.
    promise: str
    check: Callable[[bytes], object]
    #: Valid inputs, written here, from which mutation begins.
    seeds: Sequence[bytes]

    @property
    def corpus(self) -> Path:
        return CORPUS / self.name

    def inputs(self) -> Iterator[bytes]:
        """The seeds, and the files of the corpus in the order of their names."""
        yield from self.seeds
        if self.corpus.is_dir():
            for path in sorted(self.corpus.iterdir()):
                yield path.read_bytes()


def outcome(call: Callable[..., object], *arguments: object) -> tuple[bool, object]:
    """(True, the result), or (False, the error) if the parser rejects the input with an error of ours."""
    try:
        return True, call(*arguments)
    except IsochroneError as error:
        rejection = error
    # What is rejected is the caller's fault, and the caller can be sent the message.
    assert rejection.http_status != 500, f"{type(rejection).__name__}: {rejection}"
    rejection.message.encode()
    return False, (type(rejection).__name__, str(rejection))


def cuts(data: bytes, seed: int) -> list[int]:
    """Positions at which ``data`` is cut; 0 cuts it into single bytes."""
    step = seed % 61 + 1 if seed else 1
    return list(range(step, len(data), step))


def parts(data: bytes, mark: bytes = b"\xff\xfe") -> list[bytes]:
    """An input of several messages: they are divided by ``mark``."""
    return data.split(mark)
