"""Whether the records of the store are this process's to read at all. Pure.

A controller or a supervisor that has another key than the fleet must not begin: to it, every record would look forged.
"""

from __future__ import annotations

from isochrone.control.state.view import View
from isochrone.errors import Unavailable
from isochrone.store.seals import NO_SEAL, refusal


class ForeignRecords(Unavailable):
    """Every record is refused."""


def check_seals(view: View, url: str) -> None:
    """Raise ``ForeignRecords`` if there are records and every one is refused. ``url``: of the store.

    Those with a lease do not count: they are written again in a moment.
    """
    reasons = {refusal(entry.value) for entry in view.entries.values() if not entry.lease}
    if not reasons or "" in reasons:
        return
    name = view.keys.fleet_name
    if reasons == {NO_SEAL}:
        raise ForeignRecords(
            f"the records of fleet '{name}' in store {url} have no seal: give the fleet its key with "
            "'security: {key_required: false}' first (--accept-unsealed), see docs/fleet-key.md"
        )
    raise ForeignRecords(
        f"the records of fleet '{name}' in store {url} are sealed with another key: name the fleet's key in "
        "security.key (--fleet-key)"
    )
