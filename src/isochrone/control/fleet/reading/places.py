"""The directories, files and addresses that a fleet.yaml makes the fleet's machines access. Pure.

The API has no users yet. A caller on another machine may change what the fleet serves, but must not add places that no
user of the controller's machine has named: anyone who reaches the port could then explore the disk and the network
behind it, or run code from there.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from isochrone.control.fleet.derived.locations import absolute, location, model_keys, repositories_of
from isochrone.control.fleet.settings.spec import Fleet
from isochrone.errors import PermissionDenied

#: Places that an error names.
_NAMED = 3


def places(fleet: Fleet, directory: Path) -> Iterator[str]:
    """Each with its kind."""
    for pool, spec in fleet.pools.items():
        for path in repositories_of(fleet, pool, directory):
            yield f"repository {path}"
        yield from (f"address {address}" for address in spec.addresses)
        # Arguments of workers may be paths, addresses or switches.
        yield from (f"argument {word}" for word in spec.arguments)
    yield from (f"repository {location(text, directory)}" for text in fleet.repository)
    security, tls = fleet.security, fleet.security.tls
    audit, signers = security.audit, security.signatures.trust
    files = (
        fleet.control.token_file,
        tls.cert,
        tls.key,
        tls.ca,
        tls.client_ca,
        security.access,
        security.key,
        audit.key,
        *signers,
    )
    yield from (f"file {absolute(file, directory)}" for file in files if file is not None)
    # A command is code that workers run.
    yield from (f"model key {source}" for source in model_keys(fleet, directory))
    if audit.directory:
        yield f"directory {audit.directory}"
    yield f"address control.listen {fleet.control.listen}"
    yield from (f"address listen {gateway.listen}" for gateway in fleet.gateways.values())


def check_places(before: tuple[Fleet, Path] | None, after: Fleet, directory: Path) -> None:
    """Raise ``PermissionDenied`` for a place that the applied fleet does not have."""
    known = frozenset(places(*before)) if before is not None else frozenset()
    new = [place for place in dict.fromkeys(places(after, directory)) if place not in known]
    if new:
        more = f" and {len(new) - _NAMED} more" if len(new) > _NAMED else ""
        raise PermissionDenied(
            f"a caller on another machine may not send the fleet to a new place ({', '.join(new[:_NAMED])}{more}); "
            "apply this file on the controller's machine"
        )
