"""Plans and explanations of model placement as answers of the API. Pure; nothing is applied."""

from __future__ import annotations

from isochrone.control.api.messages import (
    PlacedModel,
    PlacementAnswer,
    PlacementExplanation,
    PlacementMove,
    PlacementVerdict,
    PlacementWorker,
)
from isochrone.control.placement.figures import StatedFigures
from isochrone.control.placement.fleet_inputs import PlacementInputs
from isochrone.control.placement.plan import Plan
from isochrone.control.placement.planning.explanation import explain
from isochrone.control.placement.planning.planner import DEFAULT_RULES, plan_placement
from isochrone.errors import InvalidArgument


def planned(inputs: PlacementInputs) -> PlacementAnswer:
    plan = plan_placement(inputs.needs, inputs.workers, inputs.replicas)
    models = tuple(
        PlacedModel(
            each.name,
            each.memory,
            tuple(sorted(inputs.replicas.get(each.name, ()))),
            tuple(sorted(plan.replicas.get(each.name, ()))),
            plan.unplaced.get(each.name, ""),
            plan.short.get(each.name, ""),
        )
        for each in inputs.needs
    )
    moves = tuple(PlacementMove(move.action, move.model, move.worker, move.reason) for move in plan.moves)
    return PlacementAnswer(models, _workers(inputs, plan), moves, plan.without_room, inputs.assumptions)


def _workers(inputs: PlacementInputs, plan: Plan) -> tuple[PlacementWorker, ...]:
    sizes = {each.name: each.memory + each.incoming for each in inputs.needs}
    found = []
    for worker in inputs.workers:
        models = tuple(sorted(model for model, names in plan.replicas.items() if worker.name in names))
        used = sum(sizes.get(model, 0) for model in models)
        found.append(PlacementWorker(worker.name, worker.pool, worker.state, worker.memory, used, models))
    return tuple(found)


def explained(inputs: PlacementInputs, model: str, *, after_plan: bool = False) -> PlacementExplanation:
    """In the present state; of a fleet that does not run, after the plan."""
    replicas = inputs.replicas
    if after_plan:
        replicas = plan_placement(inputs.needs, inputs.workers, replicas).replicas
    found = explain(model, inputs.needs, inputs.workers, replicas, DEFAULT_RULES)
    verdicts = tuple(PlacementVerdict(each.worker, each.has, each.rule, each.detail) for each in found.workers)
    return PlacementExplanation(model, found.together, verdicts, found.missing, inputs.assumptions)


def stated(rates: list[str], run_ms: list[str], without: list[str]) -> StatedFigures:
    """Figures as texts, each MODEL=NUMBER."""
    return StatedFigures(_amounts("rate", rates), _amounts("run_ms", run_ms), frozenset(without))


def _amounts(name: str, texts: list[str]) -> dict[str, float]:
    found = {}
    for text in texts:
        # A model's name may have a "=" itself.
        model, equals, number = text.rpartition("=")
        try:
            found[model] = float(number)
        except ValueError:
            equals = ""
        if not equals or not model:
            raise InvalidArgument(f"{name}: expected MODEL=NUMBER, given '{text[:80]}'")
    return found
