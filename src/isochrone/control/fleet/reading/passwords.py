"""Removes the store's password from a fleet.yaml before the file is stored, compared or shown.

The API shows the record of the applied file to every caller, so the record must not hold the password. No process needs
it there: a process that reads the record has opened the store already.
"""

from __future__ import annotations

from isochrone.control.fleet.settings.spec import Fleet
from isochrone.store.etcd.address import split_password


def without_password(fleet: Fleet, text: str) -> tuple[Fleet, str]:
    """The fleet and its text without the password."""
    given = fleet.store.url
    url, password = split_password(given)
    if not password:
        return fleet, text
    # A URL with escapes cannot be found in the text; then the text is not stored.
    kept = text.replace(given, url) if given in text else ""
    return fleet.model_copy(update={"store": fleet.store.model_copy(update={"url": url})}), kept
