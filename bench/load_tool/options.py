"""Options that the programs of this package share."""

from __future__ import annotations

import argparse
import json
import os
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.load_tool.cores import parse_cores
from bench.worker.machine import RESULTS, describe


def make_parser(program: str, description: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"python -m {program}", description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--short", action="store_true", help="few and short measurements, about a minute")
    parser.add_argument("--server-cores", type=parse_cores, metavar="CORES", help="the server's, such as 0-3")
    parser.add_argument("--tool-cores", type=parse_cores, metavar="CORES", help="the load tools', such as 4-15")
    parser.add_argument("--processes", type=int, default=1, help="of isochrone bench (default: %(default)s)")
    parser.add_argument("--output", type=Path, metavar="FILE.json", help="every figure, in place of bench/results")
    return parser


def write_results(path: Path | None, name: str, results: dict[str, Any]) -> None:
    path = path or RESULTS / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"machine": describe(), "cores": os.cpu_count(), **results}, indent=1) + "\n")
    print(f"written to {path}")


def spread(ratios: Sequence[float]) -> str:
    """``1.002 [0.991–1.013]``: the median, the lowest and the highest."""
    return f"{statistics.median(ratios):.3f} [{min(ratios):.3f}–{max(ratios):.3f}]"


def markdown_row(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def markdown_head(*columns: str) -> str:
    return f"{markdown_row(*columns)}\n|{'---|' * len(columns)}"
