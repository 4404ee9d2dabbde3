"""A server that others reach says what it lacks."""

from __future__ import annotations

import pytest

from isochrone.secure.exposure import exposure
from isochrone.secure.loopback import is_loopback


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_loopback_needs_nothing(host: str) -> None:
    assert is_loopback(host)
    assert exposure("this worker", [host], tls=False, access=False) == ""


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "worker.example", "localhost.example", ""])
def test_other_addresses_need_both(host: str) -> None:
    assert not is_loopback(host)
    both = exposure("this worker", [host, "127.0.0.1"], tls=False, access=False)
    assert both.startswith("this worker can be reached from other machines")
    assert "plain text and every caller" in both
    assert "--tls-cert and --tls-key and --access FILE" in both
    assert "--access" not in exposure("w", [host], tls=False, access=True)
    assert "--tls-cert" not in exposure("w", [host], tls=True, access=False)
    assert exposure("w", [host], tls=True, access=True) == ""
