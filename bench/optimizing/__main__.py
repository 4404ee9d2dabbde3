"""``python -m bench.optimizing``: three trained models through the whole search, in one table. See docs/optimizing.md.

A budget of one nanosecond makes the search try everything; the budgets of the table are not met on purpose. The float
model is measured first and the others follow, so that a busy machine blurs the ratios.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from bench.optimizing.models import NAMES, make
from isochrone.optimize.optimization import Wanted, optimize
from isochrone.optimize.searching.candidate import Goal


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.optimizing", description=__doc__)
    parser.add_argument("--models", default=",".join(NAMES))
    parser.add_argument("--seconds", type=float, default=180.0, help="of each search")
    given = parser.parse_args()
    print("| model | candidate | runtime | median ms | speed-up | MB | drop | relative error |")
    print("|---|---|---|---|---|---|---|---|")
    for name in given.models.split(","):
        with tempfile.TemporaryDirectory() as folder:
            made = make(name, Path(folder))
            wanted = Wanted(str(made.model), made.data, Goal(1e-6, 0.005), labels="y", seconds=given.seconds)
            report = optimize(wanted).report
        for outcome in report.outcomes:
            figures = outcome.figures
            if figures is None:
                print(
                    f"| {name} | {outcome.candidate.graph} | {outcome.candidate.settings} | {outcome.reason} | | | | |"
                )
                continue
            print(
                f"| {name} | {outcome.candidate.graph} | {outcome.candidate.settings} | {figures.milliseconds:.3f}"
                f" | {report.speed_up(outcome):.2f} | {figures.size / 1e6:.2f} | {figures.drop:.2%}"
                f" | {figures.relative_error:.1e} |",
                flush=True,
            )
        print(f"{name}: top-1 accuracy {made.accuracy:.1%}; {report.ended}", flush=True)


if __name__ == "__main__":
    main()
