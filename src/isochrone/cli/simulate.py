"""``isochrone simulate``: simulate policies, load and failures on fleets of up to thousands of workers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, process_time
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from typer.core import TyperGroup

from isochrone.cli.simulations import autoscaling, placement
from isochrone.errors import ConfigError, IsochroneError
from isochrone.gateway.policies.learned import model as learned_model
from isochrone.simulate import experiment
from isochrone.simulate.load.workloads import Steps, duration
from isochrone.simulate.results import plot, tables
from isochrone.simulate.scenario import file as scenario_file
from isochrone.simulate.scenario.records import PolicyChoice, Scenario
from isochrone.simulate.training import course as training
from isochrone.simulate.training import evaluation

# \b keeps the lines below it as they are.
EPILOG = """
\b
Examples:
  isochrone simulate examples/scenarios/one_slow.yaml
  isochrone simulate examples/scenarios/prequal_figure6.yaml --plot figure6.png
  isochrone simulate examples/scenarios/equal_workers.yaml --seeds 20 --json
  isochrone simulate train --out weights.json --seed 1 --minutes 2
  isochrone simulate autoscaling --course flash_crowd
  isochrone simulate examples/scenarios/failures.yaml --policy least_connections --policy peak_ewma --seed 7

The same scenario and seed give the same figures, byte for byte. docs/simulator.md describes the models.
"""

TRAIN_EPILOG = """
\b
Examples:
  isochrone simulate train --out weights.json
  isochrone simulate train --out weights.json --seed 7 --minutes 10
  isochrone simulate train --out weights.json --minutes 1 --trials 0

The gateway uses the weights with policy_options: {weights: weights.json}. docs/learned.md describes the policy.
"""

#: Seconds between two lines of progress without a terminal.
_LINE_SECONDS = 15


class RunsByDefault(TyperGroup):
    """``isochrone simulate FILE`` is short for ``isochrone simulate run FILE``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args or args[0] not in self.commands:
            args = ["run", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=RunsByDefault,
    rich_markup_mode=None,
    add_completion=False,
    help="Simulate a fleet: policies, load and failures.",
)


@app.callback()
def main() -> None:
    """Simulate a fleet: policies, load and failures."""


# Other simulations than that of requests: a module and a line each.
app.command("placement", epilog=placement.EPILOG)(placement.placement)


@app.command("run", epilog=EPILOG)
def simulate(
    scenario: Annotated[Path, typer.Argument(help="A scenario: YAML, see examples/scenarios.", show_default=False)],
    policy: Annotated[
        list[str] | None, typer.Option(help="Policy to run in place of the scenario's. May be repeated.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Seed in place of the scenario's.", min=0, show_default=False)
    ] = None,
    seeds: Annotated[int | None, typer.Option(help="Number of seeds to run.", min=1, show_default=False)] = None,
    seconds: Annotated[
        float | None,
        typer.Option(help="Simulated seconds; warm-up and steps scale with them.", min=0.001, show_default=False),
    ] = None,
    plot_to: Annotated[
        Path | None, typer.Option("--plot", help="Plot the figures to this file (.png, .svg, .pdf).")
    ] = None,
    json_out: Annotated[bool, typer.Option("--json/--no-json", help="Print figures as JSON.")] = False,
) -> None:
    """Run a scenario with the real policies; print latency percentiles, missed deadlines, rejections and goodput."""
    try:
        read = scenario_file.read(scenario)
        read = _changed(read, seed, seeds, seconds)
        choices = _choices(policy or [], read)
        begun = process_time()
        figures = _run(read, choices)
        took = process_time() - begun
        if plot_to is not None:
            _draw(figures, plot_to)
    except IsochroneError as error:
        typer.secho(f"isochrone simulate: {error}", fg="red", err=True)
        raise typer.Exit(1) from None
    if json_out:
        typer.echo(json.dumps(figures, indent=2, ensure_ascii=False))
        return
    console = Console()
    # Rather wrap wide lines than cut the table at 80 columns.
    console = Console(width=max(console.width, 110))
    if figures["about"]:
        console.print(figures["about"], highlight=False, markup=False)
    for table in tables.tables(figures):
        console.print()
        console.print(table)
    requests = sum(result["requests"] for result in figures["policies"])
    console.print(f"\n{requests:,} requests in {took:.1f} s of CPU: {requests / took:,.0f}/s", highlight=False)
    if plot_to is not None:
        console.print(f"plot: {plot_to}", highlight=False)


@app.command("train", epilog=TRAIN_EPILOG)
def train_command(
    out: Annotated[Path, typer.Option(help="Output file: weights as JSON, for the policy's `weights` option.")],
    seed: Annotated[int, typer.Option(help="Seed of the training: the same seed gives the same bytes.", min=0)] = 1,
    minutes: Annotated[
        float, typer.Option(help="Amount of training: as many episodes as take about this long on one core.", min=0)
    ] = 2.0,
    trials: Annotated[int, typer.Option(help="Seeds of the evaluation beside prequal; 0: no evaluation.", min=0)] = 5,
) -> None:
    """Train the learned policy on random fleets, and evaluate it beside prequal on workloads it was not trained on."""
    try:
        learned_model.check_writable(out)
        with _course() as progress:
            course = training.train(seed, minutes, progress)
            learned_model.write(course.weights, out)
            compared = evaluation.run(course.weights, trials, progress) if trials else []
    except IsochroneError as error:
        typer.secho(f"isochrone simulate train: {error}", fg="red", err=True)
        raise typer.Exit(1) from None
    console = Console()
    console = Console(width=max(console.width, 170))
    margins = ", ".join(f"{margin:g}: {ratio:.3f}" for margin, ratio in course.margins.items())
    console.print(f"p99 relative to prequal by margin: {margins}; taken: {course.weights.margin:g}", highlight=False)
    if compared:
        console.print(evaluation.table(compared))
    console.print(f"weights: {out}", highlight=False)


app.command("autoscaling", epilog=autoscaling.EPILOG)(autoscaling.autoscaling_command)


@contextmanager
def _course() -> Iterator[training.Progress | None]:
    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[at]}"), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bars:
        task = bars.add_task("", total=None, at="")
        yield lambda what, done, whole: bars.update(
            task, description=what, completed=done, total=whole, at=f"{done} of {whole}"
        )


def _changed(scenario: Scenario, seed: int | None, seeds: int | None, seconds: float | None) -> Scenario:
    """The scenario with the changes of the command line."""
    changes: dict[str, Any] = {"seed": seed, "seeds": seeds}
    if seconds is not None:
        # The parts of a run stay in proportion.
        workload = scenario.workload
        factor = seconds / duration(workload, scenario.seconds)
        changes |= {"seconds": seconds, "warmup_seconds": scenario.warmup_seconds * factor}
        if isinstance(workload, Steps):
            changes["workload"] = workload.model_copy(update={"step_seconds": workload.step_seconds * factor})
    return scenario.model_copy(update={key: value for key, value in changes.items() if value is not None})


def _choices(named: list[str], scenario: Scenario) -> list[PolicyChoice]:
    """The policies of the command line, with the scenario's options for them, or else the scenario's policies."""
    if not named:
        return scenario.policies
    known = {choice.name: choice for choice in scenario.policies}
    choices = [known.get(name) or PolicyChoice(name=name) for name in named]
    for choice in choices:
        if problem := scenario_file.policy_problem(choice):
            raise ConfigError("--policy", choice.name, *problem)
    return choices


def _run(scenario: Scenario, choices: list[PolicyChoice]) -> dict[str, Any]:
    console = Console(stderr=True)
    if not console.is_terminal:
        return experiment.run(scenario, choices, _lines())
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[at]}"), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bars:
        task = bars.add_task("", total=None, at="")

        def show(policy: str, seed: int, passed: float, whole: float) -> None:
            at = f"{passed:.1f} of {whole:g} s"
            bars.update(task, description=f"{policy}, seed {seed}", completed=passed, total=whole, at=at)

        return experiment.run(scenario, choices, show)


def _lines() -> experiment.Progress:
    """Progress without a terminal: a plain line every few seconds."""
    last = monotonic()

    def report(policy: str, seed: int, passed: float, whole: float) -> None:
        nonlocal last
        if monotonic() - last >= _LINE_SECONDS:
            last = monotonic()
            typer.echo(f"{policy}, seed {seed}: {passed:.1f} of {whole:g} s", err=True)

    return report


def _draw(figures: dict[str, Any], path: Path) -> None:
    try:
        plot.draw(figures, path)
    except (OSError, ValueError) as error:
        raise ConfigError("--plot", str(path), "a file that can be written, .png, .svg or .pdf", str(error)) from None
