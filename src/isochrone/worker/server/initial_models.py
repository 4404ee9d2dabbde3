"""The models that a worker loads before it serves, and when it must not serve without them."""

from __future__ import annotations

import structlog

from isochrone.errors import FetchFailed, IsochroneError, NotFound
from isochrone.models.repository.layout import EXPECTED
from isochrone.worker.catalog.catalog import Catalog
from isochrone.worker.catalog.load_parameters import LoadParameters
from isochrone.worker.server.failures import StartFailed
from isochrone.worker.server.settings import ServeSettings

log = structlog.get_logger(__name__)


async def load_initial_models(catalog: Catalog, settings: ServeSettings) -> None:
    """Load the models that the settings name. Raises ``StartFailed`` where the server must not serve without them."""
    try:
        entries = await catalog.scan()
    except FetchFailed as error:
        if settings.control_mode != "explicit" or settings.load_models:
            raise StartFailed(str(error)) from None
        # A fleet's worker says for each model why it cannot be loaded, and loads it when the store is back.
        log.error("the models cannot be listed", error=str(error))
        return
    except IsochroneError as error:
        raise StartFailed(str(error)) from None
    if settings.control_mode == "none" and (missing := catalog.repository.missing()):
        # Nothing would ever be loaded from it, as from a directory that is not there.
        raise StartFailed(f"model repository {missing[0]} has no files; expected {EXPECTED}")
    if not entries:
        log.warning(
            f"no models in the repository; expected {EXPECTED}", repositories=[*map(str, settings.repositories)]
        )
    names = list(entries)
    if settings.control_mode == "explicit":
        names = list(entries) if "*" in settings.load_models else list(settings.load_models)
    problems = {name: entries[name].problem for name in names if name in entries}
    failed: list[str] = []
    for name, problem in problems.items():
        if problem is not None:
            catalog.note_failure(name, (), problem)
            failed.append(name)
    requested = {name: LoadParameters() for name in names if problems.get(name) is None}
    for name, reason in (await catalog.load_all(requested)).items():
        if isinstance(reason, NotFound):
            # The catalog does not log a missing model, which the index does not list.
            log.error("model failed to load", model=name, error=str(reason))
        if name in requested:
            failed.append(name)
    if failed and settings.exit_on_error:
        raise StartFailed(
            f"models failed to load: {', '.join(failed)}; the log above says why"
            " (--exit-on-error=false serves the others)"
        )
