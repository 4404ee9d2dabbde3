"""A caller on another machine cannot choose where a fleet's audit logs are written, nor which file is their key."""

from __future__ import annotations

from pathlib import Path

import pytest
from fleets import TEXT, parse

from isochrone.control.fleet.reading.places import check_places
from isochrone.errors import PermissionDenied

HERE = Path("/srv/demo")
AUDITED = "security: {audit: {directory: /var/audit, key: keys/audit}}\n"


def test_the_directory_and_the_key_are_places() -> None:
    before = parse(TEXT), HERE
    with pytest.raises(PermissionDenied, match=r"file /srv/demo/keys/audit, directory /var/audit"):
        check_places(before, parse(TEXT + AUDITED), HERE)
    check_places((parse(TEXT + AUDITED), HERE), parse(TEXT + AUDITED), HERE)
    with pytest.raises(PermissionDenied, match="directory /etc"):
        check_places((parse(TEXT + AUDITED), HERE), parse(TEXT + AUDITED.replace("/var/audit", "/etc")), HERE)
    # What is recorded, and for how long, is no place.
    check_places((parse(TEXT + AUDITED), HERE), parse(TEXT + AUDITED.replace("key:", "requests: true, key:")), HERE)


def test_a_source_of_model_keys_is_a_place() -> None:
    """A command is code, which a caller on another machine must not add."""
    keys = "security: {encryption: {keys: ['command:/bin/kms']}}"
    with pytest.raises(PermissionDenied, match="model key command:/bin/kms"):
        check_places((parse(TEXT), HERE), parse(TEXT + keys), HERE)
    check_places((parse(TEXT + keys), HERE), parse(TEXT + keys), HERE)
