"""Draws the alternating run: a panel per scenario and transport, requests per second by number in flight."""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.patches import Rectangle

from bench.worker.alternating import Results
from bench.worker.comparison import row
from bench.worker.scenarios import TRANSPORTS, Cell


def draw(results: Results, cells: list[Cell], path: Path) -> None:
    """Bars with their spread over rounds, on a logarithmic axis: peers differ by orders of magnitude."""
    scenarios = list(dict.fromkeys(cell.scenario for cell in cells))
    figure, panels = pyplot.subplots(
        len(scenarios), len(TRANSPORTS), figsize=(13, 3.2 * len(scenarios)), squeeze=False, layout="constrained"
    )
    servers = list(results.versions)
    colours = {server: f"C{index}" for index, server in enumerate(servers)}
    for line, scenario in enumerate(scenarios):
        for column, transport in enumerate(TRANSPORTS):
            panel = panels[line][column]
            chosen = [cell for cell in cells if cell.scenario == scenario and cell.transport == transport]
            present = [server for server in servers if any(row(results, server, cell) for cell in chosen)]
            width = 0.8 / max(1, len(present))
            for index, server in enumerate(present):
                for position, cell in enumerate(chosen):
                    if (found := row(results, server, cell)) is None:
                        continue
                    rate = found.requests_per_second
                    panel.bar(
                        position + (index - len(present) / 2 + 0.5) * width,
                        rate.median,
                        width,
                        yerr=[[rate.median - rate.low], [rate.high - rate.median]],
                        color=colours[server],
                        error_kw={"elinewidth": 0.8},
                    )
            panel.set_yscale("log")
            panel.set_xticks(range(len(chosen)), [f"{cell.in_flight}" for cell in chosen])
            panel.set_title(f"{scenario.name}, {transport}", fontsize=10)
            panel.set_xlabel("in flight")
            panel.set_ylabel("requests/s")
            panel.grid(axis="y", alpha=0.3)
    handles = [Rectangle((0, 0), 1, 1, color=colours[server]) for server in servers]
    labels = [f"{server} {results.versions[server]}" for server in servers]
    figure.legend(handles, labels, loc="outside upper center", ncols=4, fontsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
