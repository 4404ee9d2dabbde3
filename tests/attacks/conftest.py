"""What attacks share: an access file with one token of each kind, and the table that ``make test-attacks`` prints."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from guarded_servers import Guarded, write_access

from gateway_process import StartGateway
from sample_models import write_models
from server_process import StartServer

_ROWS = "attacks"


@pytest.fixture
def tried(request: pytest.FixtureRequest) -> Iterator[Counter[str]]:
    """Counts what was tried and refused, by attack: a row of the table for each.

    A row whose attack does not end with a refusal says its end behind an arrow: "floods → connections closed".
    """
    counts: Counter[str] = Counter()
    yield counts
    request.node.user_properties += [(_ROWS, (name, number)) for name, number in counts.items()]


@pytest.fixture(scope="session")
def guarded(
    tmp_path_factory: pytest.TempPathFactory, server_factory: StartServer, gateway_factory: StartGateway
) -> Iterator[Guarded]:
    """A worker and a gateway behind one access file."""
    folder = tmp_path_factory.mktemp("guarded")
    tokens = write_access(folder / "access.yaml")
    (folder / "gateway.token").write_text(tokens["gateway"])
    repository = write_models(folder / "models", "identity_fp32", "identity_int32", "repeat")
    flags = ("--access", str(folder / "access.yaml"))
    with (
        server_factory(repository, *flags, "--model-control-mode", "explicit", "--load-model", "*") as worker,
        gateway_factory([worker], *flags, "--upstream-token-file", str(folder / "gateway.token")) as gateway,
    ):
        gateway.wait_workers(1)
        yield Guarded(worker, gateway, tokens, folder / "access.yaml")


def pytest_terminal_summary(terminalreporter: Any) -> None:
    counts: Counter[str] = Counter()
    failed = 0
    for outcome in ("", "passed", "failed"):
        for report in terminalreporter.stats.get(outcome, ()):
            failed += outcome == "failed" and "tests/attacks" in report.nodeid
            for name, value in report.user_properties:
                if name == _ROWS:
                    counts[value[0]] += value[1]
    if counts:
        terminalreporter.section("attacks")
        for attack, number in sorted(counts.items()):
            name, _, end = attack.partition(" → ")
            terminalreporter.write_line(f"{name:<72}{number:>7} {end or 'tried and refused'}")
        terminalreporter.write_line(f"{failed} tests let something through")
