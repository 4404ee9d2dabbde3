"""Ports read from command lines, and who is in whose way."""

from __future__ import annotations

import pytest

from isochrone.control.fleet.derived.processes import ProcessSpec
from isochrone.engines.supervision.ports import Listening, conflicts, listening, reached_at


def spec(*arguments: str) -> ProcessSpec:
    return ProcessSpec("x", "gateway", arguments)


def test_the_ports_of_each_kind_of_process() -> None:
    assert listening(spec("gateway", "--listen", "10.0.0.1:8000", "--metrics-port", "9000")) == [
        Listening(8000, "10.0.0.1", "--listen"),
        Listening(9000, "10.0.0.1", "--metrics-port"),
    ]
    assert listening(spec("serve", "--host", "h", "--http-port", "1", "--grpc-port", "2", "--metrics-port", "3")) == [
        Listening(1, "h", "--http-port"),
        Listening(2, "h", "--grpc-port"),
        Listening(3, "h", "--metrics-port"),
    ]
    assert listening(spec("control", "--listen", "[::1]:8003")) == [Listening(8003, "::1", "--listen")]


@pytest.mark.parametrize(
    "arguments",
    [
        ("gateway", "--listen", "h:0", "--metrics-port", "-1"),
        ("gateway", "--listen", "h:8000", "--reuse-port"),
        ("serve", "--http-port", "0", "--grpc-port", "0", "--metrics-port", "0"),
        ("serve",),
    ],
)
def test_ports_that_are_picked_or_shared_are_in_nobodys_way(arguments: tuple[str, ...]) -> None:
    assert listening(spec(*arguments)) == []
    assert not conflicts(spec(*arguments), spec("gateway", "--listen", "0.0.0.0:8000"))


@pytest.mark.parametrize(
    ("one", "other", "clash"),
    [
        ("127.0.0.1:8000", "127.0.0.1:8000", True),
        ("127.0.0.1:8000", "0.0.0.0:8000", True),
        ("127.0.0.1:8000", "127.0.0.2:8000", False),
        ("127.0.0.1:8000", "127.0.0.1:8001", False),
    ],
)
def test_two_addresses_clash_when_both_cannot_be_listened_on(one: str, other: str, clash: bool) -> None:
    first, second = spec("gateway", "--listen", one), spec("gateway", "--listen", other)
    assert conflicts(first, second) is clash
    assert conflicts(second, first) is clash


def test_a_process_on_another_machine_is_reached_at_its_address() -> None:
    assert reached_at(spec("control", "--listen", "0.0.0.0:8003"), "10.0.0.7") == ("10.0.0.7", 8003)
    assert reached_at(spec("control", "--listen", "0.0.0.0:8003"), "") == ("0.0.0.0", 8003)
    assert reached_at(spec("control", "--listen", "127.0.0.1:8003"), "10.0.0.7") == ("127.0.0.1", 8003)
    assert reached_at(spec("control", "--listen", "0.0.0.0:0"), "10.0.0.7") is None
