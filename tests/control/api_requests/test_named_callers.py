"""Who a change is recorded under: what a caller has proved, whatever it calls itself."""

from __future__ import annotations

import pytest
from starlette.requests import Request

from isochrone.control.api.operation import who_asks


@pytest.mark.parametrize(
    ("proved", "claimed", "named", "found"),
    [
        ("", "", "", "unknown"),
        ("", "root@vm", "", "root@vm"),
        ("", "root@vm", "ci", "ci"),
        ("token:ops", "", "", "token:ops"),
        ("token:ops", "root@vm", "", "token:ops (root@vm)"),
        ("token:ops", "ceo@boardroom", "token:admin", "token:ops (token:admin)"),
        ("token:ops", "token:ops (console)", "", "token:ops (console)"),
        ("token:ops", "token:opsx", "", "token:ops (token:opsx)"),
        ("token:ops", "token:ops", "", "token:ops"),
    ],
)
def test_who_asks(proved: str, claimed: str, named: str, found: str) -> None:
    headers = [(b"x-isochrone-user", claimed.encode())]
    request = Request({"type": "http", "headers": headers, "state": {"proved": proved}})
    assert who_asks(request, named) == found
