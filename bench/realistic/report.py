"""The table and the promises. Pure: samples in, text out."""

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from bench.realistic.cells import GRPC, HTTP, Cell
from bench.realistic.models import BATCHED, COSTS
from bench.realistic.servers import GATEWAY, TRITON, WORKER
from bench.worker.comparison import Spread
from bench.worker.load import Figure

NOT_MEASURED = "not measured"


@dataclass(frozen=True)
class Sample:
    """One contender's figure for one cell in one round; ``worker_us``: the worker's own CPU per request."""

    contender: str
    cell: Cell
    round_number: int
    figure: Figure | None
    worker_us: float = 0.0
    problem: str = ""


@dataclass(frozen=True)
class Findings:
    """Everything a run found. ``bare``: model → runs per second of onnxruntime in a loop, one entry per round."""

    samples: Sequence[Sample]
    bare: Mapping[str, Sequence[float]]
    triton_is_native: bool

    def figures(self, contender: str, cell: Cell) -> dict[int, Sample]:
        return {
            each.round_number: each
            for each in self.samples
            if each.contender == contender and each.cell == cell and each.figure is not None
        }

    def ratio(
        self, first: tuple[str, Cell], second: tuple[str, Cell], value: Callable[[Sample], float]
    ) -> Spread | None:
        """First over second, round by round."""
        ours, theirs = self.figures(*first), self.figures(*second)
        found = [value(ours[number]) / value(theirs[number]) for number in sorted(ours.keys() & theirs.keys())]
        return Spread.of(found) if found else None


def rate(sample: Sample) -> float:
    assert sample.figure is not None
    return sample.figure.requests_per_second


def median_us(sample: Sample) -> float:
    assert sample.figure is not None
    assert sample.figure.median_us is not None
    return sample.figure.median_us


def table(findings: Findings, cells: Sequence[Cell]) -> Iterator[str]:
    yield (
        f"{'cell':44} {'server':8} {'requests/s':>11} {'(low to high)':>19} {'p50 µs':>8} {'p99 µs':>9} "
        f"{'worker µs':>9} {'client':>7} {'of Triton':>10}"
    )
    for cell in cells:
        for contender in (WORKER, GATEWAY, TRITON):
            samples = list(findings.figures(contender, cell).values())
            if not samples:
                problems = {each.problem for each in findings.samples if each.cell == cell and each.problem}
                for each in findings.samples:
                    if each.contender == contender and each.cell == cell and each.problem in problems:
                        yield f"{cell.name:44} {contender:8} failed: {each.problem[:100]}"
                        break
                continue
            rates = Spread.of([rate(each) for each in samples])
            ratio = findings.ratio((contender, cell), (TRITON, cell), rate) if contender != TRITON else None
            figures = [each.figure for each in samples if each.figure is not None]
            p99 = statistics.median(figure.p99_us or 0.0 for figure in figures)
            beside = f"{ratio.median:9.2f}×" if ratio else ""
            shares = [figure.client_share for figure in figures if figure.client_share is not None]
            client = f"{statistics.median(shares):.0%}" if shares else ""
            yield (
                f"{cell.name:44} {contender:8} {rates.median:11,.0f} {rates.low:9,.0f}–{rates.high:9,.0f} "
                f"{statistics.median(map(median_us, samples)):8.0f} {p99:9.0f} "
                f"{statistics.median(each.worker_us for each in samples):9.1f} {client:>7} {beside:>10}"
            )


def promises(findings: Findings) -> Iterator[str]:
    """What the servers promise, beside what was measured."""
    kind = "native" if findings.triton_is_native else "python"
    for transport in (HTTP, GRPC):
        for what in ("plain", "ids"):
            for model in ("small", "small" + BATCHED):
                cell = Cell(what, model, transport, 32)
                yield _line(
                    f"{cell.name}: at least 2.5× Triton's {kind} backend",
                    findings.ratio((WORKER, cell), (TRITON, cell), rate),
                    lambda spread: spread.median >= 2.5,
                )
        cell = Cell("plain", "small", transport, 1)
        yield _line(
            f"{cell.name}: median at most 0.6 of Triton's",
            findings.ratio((WORKER, cell), (TRITON, cell), median_us),
            lambda spread: spread.median <= 0.6,
        )
    for transport in (HTTP, GRPC):
        for model in COSTS:
            for number in (1, 8, 32):
                yield _line(
                    f"{model} {transport} ×{number}: batching on is not slower than off (5 %)",
                    findings.ratio(
                        (WORKER, Cell("ids", model + BATCHED, transport, number)),
                        (WORKER, Cell("ids", model, transport, number)),
                        rate,
                    ),
                    lambda spread: spread.median >= 0.95,
                )
    for number in (1, 32):
        cell = Cell("ids", "small", GRPC, number)
        yield _line(
            f"{cell.name}: worker CPU behind the gateway at most 1.15× direct",
            findings.ratio((GATEWAY, cell), (WORKER, cell), lambda sample: sample.worker_us),
            lambda spread: spread.median <= 1.15,
        )
    for transport in (HTTP, GRPC):
        yield from _beside_bare(findings, transport)
        for model in ("small", "small" + BATCHED, "medium"):
            busy = Cell("ids", model, transport, 32, neighbours=True)
            quiet = Cell("ids", model, transport, 32)
            yield _line(
                f"{busy.name}: at least 40 % of the quiet figure",
                findings.ratio((WORKER, busy), (WORKER, quiet), rate),
                lambda spread: spread.median >= 0.4,
            )
            yield _line(
                f"{busy.name}: ahead of Triton",
                findings.ratio((WORKER, busy), (TRITON, busy), rate),
                lambda spread: spread.median > 1,
            )


def _beside_bare(findings: Findings, transport: str) -> Iterator[str]:
    bare = findings.bare.get("medium", ())
    cell = Cell("ids", "medium", transport, 1)
    added = [median_us(each) - 1e6 / bare[number] for number, each in findings.figures(WORKER, cell).items()]
    yield _line(
        f"{cell.name}: at most 70 µs over bare onnxruntime",
        Spread.of(added) if added else None,
        lambda spread: spread.median <= 70,
    )
    for number in (8, 32):
        cell = Cell("ids", "medium", transport, number)
        shares = [rate(each) / bare[turn] for turn, each in findings.figures(WORKER, cell).items()]
        yield _line(
            f"{cell.name}: at least 0.9 of bare onnxruntime",
            Spread.of(shares) if shares else None,
            lambda spread: spread.median >= 0.9,
        )


def _line(claim: str, spread: Spread | None, met: Callable[[Spread], bool]) -> str:
    if spread is None:
        return f"  --      {claim}: {NOT_MEASURED}"
    verdict = "MET   " if met(spread) else "MISSED"
    return f"  {verdict}  {claim}: {spread.median:.2f} ({spread.low:.2f} to {spread.high:.2f})"
