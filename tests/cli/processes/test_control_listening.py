"""The control API's port: on this machine by default; other addresses are logged with a warning."""

from __future__ import annotations

import inspect

import pytest
from structlog.testing import capture_logs

from isochrone.cli.processes.control import _listening, control


def test_it_is_on_this_machine_alone_by_default() -> None:
    assert str(inspect.signature(control).parameters["listen"].default) == "127.0.0.1:8003"


@pytest.mark.parametrize(
    ("host", "warned"),
    [("127.0.0.1", False), ("::1", False), ("localhost", False), ("0.0.0.0", True), ("::", True), ("10.0.0.1", True)],
)
def test_another_address_is_warned_about(host: str, warned: bool) -> None:
    with capture_logs() as lines:
        _listening(host, 8003)
    assert [line["log_level"] for line in lines] == (["info", "warning"] if warned else ["info"])


def test_a_controller_with_a_token_warns_about_nothing() -> None:
    with capture_logs() as lines:
        _listening("0.0.0.0", 8003, needs_token=True)
    assert [each["log_level"] for each in lines] == ["info"]
