"""Ctrl-C while a rollout is watched ends the watching; the command says that the rollout continues."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import pytest
from rich.console import Console

from isochrone.cli.api_client import ApiClient
from isochrone.cli.rollouts.watching import watch_rollout
from isochrone.control.state.rollout_records import PREPARING, Change, RolloutRecord


class InterruptedClient(ApiClient):
    """Gets one record, then Ctrl-C."""

    def __init__(self) -> None:
        super().__init__("http://127.0.0.1:1")

    def follow(self, path: str, kind: type[Any], **query: int) -> Iterator[Any]:
        yield RolloutRecord("r17", {"detector": Change("2", "1")}, PREPARING)
        raise KeyboardInterrupt


@pytest.mark.parametrize("quiet", [False, True])
@pytest.mark.parametrize("terminal", [False, True])
def test_ctrl_c_says_that_the_rollout_goes_on(capsys: pytest.CaptureFixture[str], quiet: bool, terminal: bool) -> None:
    console = Console(file=io.StringIO(), force_terminal=terminal)
    with InterruptedClient() as client, pytest.raises(KeyboardInterrupt):
        watch_rollout(client, "r17", console, quiet=quiet)
    assert capsys.readouterr().err == "rollout r17 goes on; see: isochrone rollout status r17\n"
