"""Turns samples into comparisons: ratios per round, their median and spread, and the targets they are held to.

Pure: results in, numbers out.
"""

import statistics
from collections.abc import Iterator
from dataclasses import dataclass

from bench.worker.alternating import Results, Sample
from bench.worker.load import Figure
from bench.worker.models import MAX_BATCH
from bench.worker.scenarios import IDENTITY_64, LARGE, Cell

OURS = "isochrone"


@dataclass(frozen=True)
class Spread:
    """A median over rounds, with the lowest and the highest."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: list[float]) -> "Spread":
        return cls(statistics.median(values), min(values), max(values))


@dataclass(frozen=True)
class Row:
    """One server in one cell. `ratio` is ours to its requests per second, round by round."""

    server: str
    model: str
    cell: Cell
    requests_per_second: Spread
    cpu_us_per_request: Spread
    median_us: Spread | None
    p99_us: Spread | None
    mean_us: Spread | None
    ratio: Spread | None
    latency_ratio: Spread | None
    problems: list[str]


@dataclass(frozen=True)
class Target:
    """A claim and what was measured; `met` is None when the run did not measure it."""

    claim: str
    measured: str
    met: bool | None


def better_samples(results: Results, server: str, cell: Cell) -> list[Sample]:
    """The samples of the server's better variant: at 1 in flight the one with the lower latency, else the faster."""
    by_model: dict[str, list[Sample]] = {}
    for sample in results.samples:
        if sample.server == server and sample.cell == cell:
            by_model.setdefault(sample.model, []).append(sample)

    def merit(samples: list[Sample]) -> float:
        rates = [sample.figure.requests_per_second for sample in samples if sample.figure]
        return statistics.median(rates) if rates else 0.0

    # In a closed loop of one, the lower latency is the higher rate: one measure serves both.
    return max(by_model.values(), key=merit, default=[])


def row(results: Results, server: str, cell: Cell) -> Row | None:
    """One line of the table, or None when the server has no figure there."""
    samples = better_samples(results, server, cell)
    figures = {sample.round_number: sample.figure for sample in samples if sample.figure}
    if not figures:
        return None
    ours = {s.round_number: s.figure for s in better_samples(results, OURS, cell) if s.figure}
    shared = sorted(figures.keys() & ours.keys()) if server != OURS else []
    ratios = [ours[number].requests_per_second / figures[number].requests_per_second for number in shared]
    latency_ratios = [
        mine / theirs
        for number in shared
        if (mine := ours[number].median_us) is not None and (theirs := figures[number].median_us) is not None
    ]
    values = list(figures.values())
    return Row(
        server=server,
        model=samples[0].model,
        cell=cell,
        requests_per_second=Spread.of([figure.requests_per_second for figure in values]),
        cpu_us_per_request=Spread.of([figure.cpu_us_per_request for figure in values]),
        median_us=_spread(values, "median_us"),
        p99_us=_spread(values, "p99_us"),
        mean_us=_spread(values, "mean_us"),
        ratio=Spread.of(ratios) if ratios else None,
        latency_ratio=Spread.of(latency_ratios) if latency_ratios else None,
        problems=[sample.problem for sample in samples if sample.problem],
    )


def _spread(figures: list[Figure], name: str) -> Spread | None:
    values = [value for figure in figures if (value := getattr(figure, name)) is not None]
    return Spread.of(values) if values else None


def rows(results: Results, cells: list[Cell]) -> Iterator[Row]:
    """Every line, cell by cell, servers in the order they were named."""
    for cell in cells:
        for server in results.versions:
            if (line := row(results, server, cell)) is not None:
                yield line


def share_of_bare(results: Results, cell: Cell) -> Spread | None:
    """Our requests per second on the large perceptron over bare onnxruntime's rows at full batch, round by round."""
    bare = results.bare.get(MAX_BATCH, [])
    shares = [
        sample.figure.requests_per_second / bare[sample.round_number]
        for sample in better_samples(results, OURS, cell)
        if sample.figure and sample.round_number < len(bare)
    ]
    return Spread.of(shares) if shares else None


def targets(results: Results) -> list[Target]:
    """What the worker promises, beside what this run measured."""
    found: list[Target] = []

    def at_least(claim: str, value: Spread | None, limit: float, unit: str) -> None:
        found.append(_judge(claim, value, unit, None if value is None else value.median >= limit))

    def ratio(server: str, transport: str) -> Spread | None:
        line = row(results, server, Cell(IDENTITY_64, transport, 32))
        return line.ratio if line else None

    at_least("identity_64, 32 in flight, gRPC: at least 4× Triton's python backend", ratio("triton", "grpc"), 4, "×")
    at_least("identity_64, 32 in flight, HTTP: at least 3× Triton's python backend", ratio("triton", "http"), 3, "×")
    for transport, label in (("grpc", "gRPC"), ("http", "HTTP")):
        line = row(results, "triton", Cell(IDENTITY_64, transport, 1))
        value = line.latency_ratio if line else None
        claim = f"identity_64, 1 in flight, {label}: median at most 0.33 of Triton's"
        found.append(_judge(claim, value, "", None if value is None else value.median <= 1 / 3))
    for transport, label in (("grpc", "gRPC"), ("http", "HTTP")):
        claim = f"mlp_large, 32 in flight, {label}: at least 80 % of bare onnxruntime at batch {MAX_BATCH}"
        value = share_of_bare(results, Cell(LARGE, transport, 32))
        percent = Spread(value.median * 100, value.low * 100, value.high * 100) if value else None
        at_least(claim, percent, 80, " %")
    at_least("identity_64, 32 in flight, gRPC: at least 8× grpc.aio", ratio("grpc_aio", "grpc"), 8, "×")
    return found


def _judge(claim: str, value: Spread | None, unit: str, met: bool | None) -> Target:
    if value is None:
        return Target(claim, "not measured in this run", None)
    return Target(claim, f"{value.median:.2f}{unit} ({value.low:.2f}–{value.high:.2f})", met)
