"""fleet.yaml as one frozen object, checked when it is made.

``reading`` makes one from a file and reports errors by line; the store holds it as JSON (``model_dump(mode="json")``,
``Fleet.model_validate``).
"""

from __future__ import annotations

from pydantic import model_validator

from isochrone.control.fleet.settings.checks import problems
from isochrone.control.fleet.settings.sections import FleetSections
from isochrone.settings.validator_errors import several


class Fleet(FleetSections):
    """The keys of the file."""

    @model_validator(mode="after")
    def _fits_together(self) -> Fleet:
        if found := problems(self):
            raise several(found)
        return self
