"""The workload of one run: frozen, checked, and as JSON the message to a generator process.

Flags of the command and a file (YAML or JSON) say the same things; a flag has precedence. Errors name the key.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from isochrone.bench.workload.arrivals import Instants, bursts, constant, poisson, read_trace, recorded, shared
from isochrone.bench.workload.mix import Kind
from isochrone.errors import ConfigError
from isochrone.settings.documents import as_mapping, parse_document, read_text
from isochrone.settings.ranges import Amount, Count, Positive, PositiveAmount
from isochrone.settings.sections import Section, read_section

ArrivalProcess = Literal["constant", "poisson", "bursts", "trace"]
Protocol = Literal["http", "grpc", "openai"]

DEFAULT_SECONDS = 10.0
DEFAULT_WARMUP_SECONDS = 2.0


class WorkloadFile(Section):
    """A file with a workload. What it leaves out, flags say."""

    kinds: Annotated[list[Kind], Field(min_length=1)]
    """The kinds of requests."""
    rate: PositiveAmount | None = None
    """Open loop: requests per second."""
    arrivals: ArrivalProcess | None = None
    """Open loop: how requests follow each other."""
    on_seconds: PositiveAmount | None = None
    """Bursts: seconds with requests."""
    off_seconds: PositiveAmount | None = None
    """Bursts: seconds without."""
    trace: str | None = None
    """A file of recorded arrivals: seconds since its start, one number a line."""
    concurrency: Positive | None = None
    """Closed loop: requests in flight."""
    seconds: PositiveAmount | None = None
    """Measured time."""
    warmup_seconds: Amount | None = None
    """Time before it, whose requests do not count."""
    seed: Count | None = None
    """Of arrivals, kinds and random inputs."""


class Workload(Section):
    """What one run sends, when, and where. Exactly one of ``rate``, ``trace`` and ``in_flight`` is given."""

    target: str
    protocol: Protocol = "http"
    kinds: Annotated[list[Kind], Field(min_length=1)]
    rate: PositiveAmount | None = None
    arrivals: ArrivalProcess = "poisson"
    on_seconds: PositiveAmount = 1.0
    off_seconds: PositiveAmount = 1.0
    trace: str = ""
    in_flight: Positive | None = None
    seconds: PositiveAmount = DEFAULT_SECONDS
    warmup_seconds: Amount = DEFAULT_WARMUP_SECONDS
    timeout_seconds: PositiveAmount = 30.0
    """A request without an answer after this, counted from the intended instant, has failed."""
    max_in_flight: Positive = 1024
    """Open loop: further requests wait in the generator; their latencies still count from the intended instant."""
    connections: Count = 0
    """0: HTTP/1.1 has one for each request in flight, gRPC one for 32."""
    headers: dict[str, str] = Field(default_factory=dict)
    seed: Count = 0
    ca: str = ""
    cert: str = ""
    key: str = ""

    @property
    def is_open_loop(self) -> bool:
        return self.in_flight is None

    def instants(self, index: int, count: int) -> Iterator[Instants]:
        """Open loop: the intended instants of one of ``count`` generator processes, from the start of the warm-up."""
        whole = self.warmup_seconds + self.seconds
        if self.trace:
            blocks = recorded(read_trace(Path(self.trace)), whole)
        else:
            assert self.rate is not None
            if self.arrivals == "constant":
                blocks = constant(self.rate, whole)
            elif self.arrivals == "bursts":
                blocks = bursts(self.rate, self.on_seconds, self.off_seconds, whole, self.seed)
            else:
                blocks = poisson(self.rate, whole, self.seed)
        return shared(blocks, index, count)

    def part_in_flight(self, index: int, count: int) -> int:
        """The limit of requests in flight of one of ``count`` generator processes."""
        return _part(self.in_flight or self.max_in_flight, index, count)


def _part(whole: int, index: int, count: int) -> int:
    return whole // count + (index < whole % count)


def read_workload_file(path: Path) -> WorkloadFile:
    """Raises ``SettingsError``, which names file, line and key. Paths in it are relative to the file."""
    expected = "a YAML or JSON file with the key kinds: a list of kinds of requests"
    document = parse_document(read_text(path, expected), str(path))
    as_mapping(document, expected)
    read = read_section(WorkloadFile, document)
    changed: dict[str, Any] = {
        "kinds": [
            kind.model_copy(update={"inputs": _beside(path, kind.inputs)}) if kind.inputs else kind
            for kind in read.kinds
        ]
    }
    if read.trace:
        changed["trace"] = _beside(path, read.trace)
    return read.model_copy(update=changed)


def _beside(file: Path, named: str) -> str:
    return str((file.parent / named).absolute())


def check_loop(rate: float | None, trace: str, in_flight: int | None, arrivals: str) -> None:
    """Exactly one kind of load. Raises ``ConfigError`` that names the flags."""
    given = [
        flag
        for flag, value in (("--rate", rate), ("--trace", trace or None), ("--concurrency", in_flight))
        if value is not None
    ]
    if len(given) != 1:
        expected = "--rate NUMBER or --trace FILE (open loop), or --concurrency NUMBER (closed loop)"
        raise ConfigError("load", "flags", expected, " and ".join(given) or "none of them")
    if arrivals == "trace" and not trace:
        raise ConfigError("--arrivals", "trace", "--trace FILE with it", "no file")
    if trace and arrivals not in ("", "trace"):
        raise ConfigError("--arrivals", arrivals, "trace, since --trace is given", f"'{arrivals}'")
    if in_flight is not None and arrivals:
        raise ConfigError("--arrivals", arrivals, "--rate with it: a closed loop has no arrivals", "--concurrency")
