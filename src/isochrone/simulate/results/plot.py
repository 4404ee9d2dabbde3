"""A plot of the figures: latency by policy, or by phase if the load changes in steps. Needs matplotlib."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from isochrone.errors import Unsupported

_PERCENTILES = ("p50", "p90", "p99", "p99.9")


def draw(figures: dict[str, Any], path: Path) -> None:
    """Write the plot in the format of the file's suffix."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise Unsupported("a plot needs matplotlib, which is not installed; run: pip install matplotlib") from None
    # Without pyplot: it keeps global state and looks for a display.
    figure = Figure(figsize=(10, 5), layout="constrained")
    FigureCanvasAgg(figure)
    policies = figures["policies"]
    if "phases" in policies[0]:
        left, right = figure.subplots(1, 2)
        for index, policy in enumerate(policies):
            names = [row["phase"] for row in policy["phases"]]
            for percentile, style in (("p99.9", "-"), ("p50", ":")):
                values = [row[f"{percentile}_ms"] for row in policy["phases"]]
                label = f"{policy['policy']} {percentile}"
                left.plot(names, values, style, marker="o", markersize=3, color=f"C{index}", label=label)
            misses = [100 * (row["missed_share"] + row["failed_share"]) for row in policy["phases"]]
            right.plot(names, misses, marker="o", markersize=3, color=f"C{index}", label=policy["policy"])
        right.set_ylabel("deadlines missed and failed, %")
        right.set_xlabel("load")
        left.set_xlabel("load")
        right.legend(fontsize="small")
        for axes in (left, right):
            axes.tick_params("x", labelrotation=45)
    else:
        left = figure.subplots()
        width = 0.8 / len(policies)
        for index, policy in enumerate(policies):
            places = [position + index * width for position in range(len(_PERCENTILES))]
            values = [policy["total"][f"{name}_ms"] for name in _PERCENTILES]
            left.bar(places, values, width, label=policy["policy"])
        left.set_xticks([position + 0.4 - width / 2 for position in range(len(_PERCENTILES))], _PERCENTILES)
    left.set_yscale("log")
    left.set_ylabel("latency, ms")
    left.legend(fontsize="small")
    figure.suptitle(figures["scenario"] or "scenario")
    # No date and no version: the same figures give the same file.
    figure.savefig(path, metadata={"Software": None} if path.suffix == ".png" else None)
