"""Rollouts and canaries: those in progress, with what may be done; a form that starts one; models to roll back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Final

from nicegui import ui

from isochrone.console.pages.actions import start_of
from isochrone.console.pages.far_calls import FarCalls
from isochrone.console.pages.frame import confirm, framed, section
from isochrone.control.api.service import ControlService
from isochrone.control.fleet.reading.catalog import available_versions
from isochrone.control.fleet.reading.parsing import fleet_of
from isochrone.control.state.records import FleetRecord
from isochrone.errors import IsochroneError

#: Seconds that a repository has to answer.
_PATIENCE: Final = 10.0
_BY_FILE: Final = "as in fleet.yaml"


def rollouts_page(service: ControlService) -> Callable[[], None]:
    calls = FarCalls()

    def page() -> None:
        with framed("/rollouts"):
            section("Rollouts", "rollouts", "open ones first")
            _start_form(service, calls)
            section("Served versions", "served-versions")

    return page


def _start_form(service: ControlService, calls: FarCalls) -> None:
    models = sorted(service.view().assignments)
    with ui.element("section").classes("card").props('aria-label="Start a rollout"'):
        with ui.element("h2"):
            ui.label("Start a rollout")
        if service.view().fleet is None or not models:
            ui.label("No model is served yet.").classes("hint")
            return
        with ui.element("div").classes("form"):
            model = ui.select(models, label="Model").props("outlined dense data-field=model").classes("field")
            version = ui.select([], label="Version").props("outlined dense data-field=version").classes("field")
            cutover = ui.select([_BY_FILE, "fast", "strict"], value=_BY_FILE, label="Cutover")
            cutover.props("outlined dense").classes("field")
            canary = ui.select([_BY_FILE, "on", "off"], value=_BY_FILE, label="Canary")
            canary.props("outlined dense").classes("field")
            problem = ui.label("").classes("bad")

            async def offer() -> None:
                name, view = model.value, service.view()
                if view.fleet is None:
                    return
                found, said = await _versions(calls, view.fleet, name)
                if model.value != name:
                    # Another was chosen meanwhile, whose versions are shown or come.
                    return
                served = service.view().assignments.get(name)
                problem.set_text(said)
                version.set_options([each for each in found if served is None or each != served.version])
                version.set_value(next(iter(version.options), None))

            def start() -> None:
                if not model.value or not version.value:
                    problem.set_text("Choose a model and a version.")
                    return
                problem.set_text("")
                chosen = ("" if each.value == _BY_FILE else str(each.value) for each in (cutover, canary))
                confirm(start_of(str(model.value), str(version.value), *chosen))

            model.on_value_change(offer)
            with ui.element("button").props("type=button data-start").classes("button main") as button:
                ui.label("Start…")
            button.on("click", start)


async def _versions(calls: FarCalls, record: FleetRecord, model: str) -> tuple[list[str], str]:
    """The versions in the repository, the newest first; and why there are none."""
    try:
        async with asyncio.timeout(_PATIENCE):
            fleet = fleet_of(record.spec)
            found = await calls.call(available_versions, fleet, model, Path(record.directory))
    except TimeoutError:
        return [], f"The repository did not answer within {_PATIENCE:g} s."
    except (IsochroneError, OSError) as error:
        return [], str(error)[:300]
    return [str(each) for each in sorted(found, reverse=True)], "" if found else "The repository has no version of it."
