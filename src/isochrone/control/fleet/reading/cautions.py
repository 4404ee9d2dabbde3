"""What a plan warns of, and only files show: versions without a signature, and access rules that let nobody apply.

Reads the access file and signatures, and refuses nothing: the user may know better.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from isochrone.control.fleet.derived.locations import absolute
from isochrone.control.fleet.reading.catalog import signatures_of
from isochrone.control.fleet.reading.file import FleetFile
from isochrone.control.fleet.reading.parsing import fleet_of
from isochrone.control.fleet.settings.spec import Fleet
from isochrone.control.state.records import Assignment, FleetRecord
from isochrone.errors import IsochroneError
from isochrone.models.repository.listings import Listings
from isochrone.secure.access.administration import has_administrator
from isochrone.secure.access.document import load_access
from isochrone.secure.signing.signed_version import SignatureRefused
from isochrone.secure.signing.trust import Trust

#: Versions that a warning names.
_NAMED = 5


def cautions(file: FleetFile, record: FleetRecord | None, served: Mapping[str, Assignment]) -> dict[str, str]:
    """By key of the file: the warning. ``record``: the applied file; ``served``: the present assignments."""
    found = {
        "security.access": lockout(file.fleet, Path(file.directory)),
        "security.signatures": _unsigned(file, record, served),
    }
    return {key: text for key, text in found.items() if text}


def lockout(fleet: Fleet, directory: Path) -> str:
    """Why nobody may administer the fleet by its access file; "": somebody may, or everybody."""
    name = fleet.security.access
    if name is None:
        return ""
    path = absolute(name, directory)
    try:
        if has_administrator(load_access(path), time.time()):
            return ""
    except (IsochroneError, OSError):
        # The check of the file reports its errors.
        return ""
    return (
        "nobody will be allowed to apply a file: no valid token, and nobody of a provider, has a role with "
        f"fleet-admin, such as 'admin' (certificates do not count here); assign it in {path}"
    )


def _unsigned(file: FleetFile, record: FleetRecord | None, served: Mapping[str, Assignment]) -> str:
    trusted = _trusted(file)
    if record is None or not trusted:
        return ""
    before = fleet_of(record.spec).security.signatures.trust
    if {absolute(each, Path(record.directory)) for each in before} == set(trusted):
        return ""
    found = list(_without_signature(file, trusted, served))
    if not found:
        return ""
    more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
    return (
        "workers restart and will not load what they serve: no trusted signature on "
        f"{', '.join(found[:_NAMED])}{more}; sign these versions first, with 'isochrone sign'"
    )


def _trusted(file: FleetFile) -> list[Path]:
    return [absolute(each, Path(file.directory)) for each in file.fleet.security.signatures.trust]


def _without_signature(file: FleetFile, trusted: list[Path], served: Mapping[str, Assignment]) -> Iterator[str]:
    """Served versions of models that the file keeps, whose signatures are missing or by somebody else."""
    trust, listings = _trust(trusted), Listings()
    for name in sorted(served.keys() & file.versions.keys()):
        canary = served[name].canary
        for version in (served[name].version, *([canary.version] if canary is not None else [])):
            signatures = signatures_of(file.fleet, name, version, Path(file.directory), listings)
            if not all(_counts(trust, content) for content in signatures):
                yield f"{name} {version}"


def _trust(places: list[Path]) -> Trust | None:
    """None: this machine lacks the packages for signatures, or a file of keys is wrong: then any signature counts."""
    try:
        return Trust(places)
    except IsochroneError:
        return None


def _counts(trust: Trust | None, content: bytes | None) -> bool:
    """Whether there is a signature by somebody who is trusted. The files that it covers are not read."""
    if content is None:
        return False
    try:
        if trust is not None:
            trust.verify(content)
    except SignatureRefused:
        return False
    except IsochroneError:
        return True
    return True
