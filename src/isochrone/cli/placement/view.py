"""The display of plans and explanations of model placement as tables. Pure."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from isochrone.cli.console import counted, table
from isochrone.control.api.messages import PlacedModel, PlacementAnswer, PlacementExplanation
from isochrone.control.fleet.settings.quantities import bytes_text

_STYLES = {"add": "green", "remove": "red", "lost": "red", "draining": "yellow"}


def plan_picture(plan: PlacementAnswer) -> RenderableType:
    parts: list[RenderableType] = [_models(plan), _workers(plan)]
    if plan.moves:
        shown = table("moves, in this order", "action", "model", "worker", "reason")
        for move in plan.moves:
            shown.add_row(Text(move.action, style=_STYLES[move.action]), move.model, move.worker, move.reason)
        parts.append(shown)
    else:
        parts.append(Text("nothing moves"))
    if plan.without_room:
        parts.append(Text(f"no room for a rollout of the largest model on {', '.join(plan.without_room)}", "yellow"))
    note = "This command only shows. In pools with 'replicas: planned' the leader applies such plans by itself."
    return Group(*parts, *_assumed(plan.assumptions), Text(note, style="dim"))


def explanation_picture(found: PlacementExplanation) -> RenderableType:
    others = [name for name in found.together if name != found.model]
    beside = f", together with {', '.join(others)}" if others else ""
    shown = table(f"{found.model}{beside}", "worker", "has it", "rule", "why")
    for verdict in found.workers:
        style = "green" if verdict.has and not verdict.rule else "red" if verdict.has else ""
        shown.add_row(verdict.worker, Text("yes" if verdict.has else "no", style), verdict.rule or "–", verdict.detail)
    parts: list[RenderableType] = [shown]
    if found.missing:
        parts.append(Text(found.missing, style="red"))
    return Group(*parts, *_assumed(found.assumptions))


def _models(plan: PlacementAnswer) -> Table:
    shown = table("models", "model", "memory", "workers", "state", right=("memory",))
    for model in plan.models:
        state, style = _state(model, sum(move.model == model.name for move in plan.moves))
        shown.add_row(
            model.name,
            bytes_text(model.memory) if model.memory else "–",
            ", ".join(model.after) or "–",
            Text(state, style),
        )
    return shown


def _state(model: PlacedModel, moves: int) -> tuple[str, str]:
    if model.unplaced:
        return f"unplaced: {model.unplaced}", "red"
    if model.short:
        return f"short: {model.short}", "yellow"
    return (counted(moves, "move"), "cyan") if moves else ("stays", "green")


def _workers(plan: PlacementAnswer) -> Table:
    shown = table("workers", "worker", "pool", "state", "models", "memory", right=("models", "memory"))
    for worker in plan.workers:
        memory = f"{bytes_text(worker.used)} of {bytes_text(worker.memory)}" if worker.memory else "–"
        state = Text(worker.state, _STYLES.get(worker.state, "green"))
        shown.add_row(worker.name, worker.pool or "–", state, str(len(worker.models)), memory)
    return shown


def _assumed(assumptions: tuple[str, ...]) -> list[Text]:
    return [Text(f"assumed: {each}", style="dim") for each in assumptions]
