"""Flags of ``isochrone pick`` that cannot work: one sentence that names what to change."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from isochrone.cli.main import app


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ((), "isochrone pick: no upstream; name one: isochrone pick --upstream host:port"),
        (("--upstream", "x"), "--upstream"),
        (("--upstream", "x:1", "--listen", "nowhere"), "--listen: expected HOST:PORT, given 'nowhere'"),
        (("--upstream", "x:1", "--policy", "best"), "--policy: expected one of"),
        (("--upstream", "x:1", "--tls-cert", "a.pem"), "--tls-cert and --tls-key go together"),
        (("--upstream", "x:1", "--store", "sqlite:x.db"), "--store brings upstreams and rules"),
        (("--upstream", "x:1", "--limit", "speed=1"), "no limit is called 'speed'"),
    ],
)
def test_mistakes_name_the_flag(words: tuple[str, ...], named: str) -> None:
    result = CliRunner().invoke(app, ["pick", *words])
    assert result.exit_code == 1
    assert named in result.output
    assert len(result.output.splitlines()) == 1
