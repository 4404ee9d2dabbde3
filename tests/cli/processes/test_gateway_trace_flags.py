"""--trace-config of a gateway: what it takes, and what it refuses by name."""

from __future__ import annotations

import pytest

from isochrone.cli.processes.flags.trace import read_trace
from isochrone.errors import InvalidArgument
from isochrone.observe.tracing.settings import ExportSettings


def test_what_it_takes() -> None:
    assert read_trace(()) == (None, 1000, False)
    given = ("mode=opentelemetry", "rate=5", "opentelemetry,url=x:1", "opentelemetry,resource=a=b=c")
    assert read_trace(given) == (ExportSettings(url="http://x:1", resource={"a": "b=c"}), 5, False)
    assert read_trace(("mode=opentelemetry", "context=all")).sends_all


@pytest.mark.parametrize(
    "given",
    [
        ("mode=triton",),
        ("rate=often",),
        ("rate=-1",),
        ("rate=99999999999",),
        ("level=TIMESTAMPS",),
        ("opentelemetry,colour=red",),
        ("url=x:1",),
        ("rate",),
        ("rate=5",),
        ("mode=opentelemetry", "opentelemetry,url=ftp://x"),
    ],
)
def test_what_it_refuses(given: tuple[str, ...]) -> None:
    with pytest.raises(InvalidArgument, match="--trace-config"):
        read_trace(given)
