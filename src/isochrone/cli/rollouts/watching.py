"""Watch a rollout until it is over: a live picture on a terminal, plain lines without one.

Every controller can answer. If the controller goes away, the rollout continues without it, so watching is retried.
"""

from __future__ import annotations

import time

import typer
from rich.console import Console, RenderableType
from rich.live import Live

from isochrone.cli.api_client import ApiClient, ApiFailed, part
from isochrone.cli.rollouts.view import new_lines, picture
from isochrone.control.state.rollout_records import RolloutRecord

#: Seconds that the controller may be unreachable, and between two attempts.
_AWAY_SECONDS = 30.0
_RETRY_SECONDS = 0.5


def watch_rollout(client: ApiClient, identity: str, console: Console, *, quiet: bool = False) -> RolloutRecord:
    """The rollout when it is over. ``quiet``: print nothing. Ctrl-C only ends the watching."""
    try:
        if quiet or not console.is_terminal:
            return _watch(client, identity, _Lines(console, quiet))
        shown = _Picture()
        with Live(console=console, refresh_per_second=8, get_renderable=shown.render):
            return _watch(client, identity, shown)
    except KeyboardInterrupt:
        typer.echo(f"rollout {identity} goes on; see: isochrone rollout status {identity}", err=True)
        raise


class _Lines:
    def __init__(self, console: Console, quiet: bool) -> None:
        self._console, self._quiet = console, quiet
        self._shown: RolloutRecord | None = None

    def show(self, record: RolloutRecord) -> None:
        if not self._quiet:
            for line in new_lines(self._shown, record):
                self._console.print(line, markup=False, soft_wrap=True)
        self._shown = record


class _Picture:
    """Rendered at every refresh: the time of the current phase advances between two records."""

    def __init__(self) -> None:
        self._record: RolloutRecord | None = None

    def show(self, record: RolloutRecord) -> None:
        self._record = record

    def render(self) -> RenderableType:
        return "" if self._record is None else picture(self._record, time.time())


def _watch(client: ApiClient, identity: str, shown: _Lines | _Picture) -> RolloutRecord:
    last: RolloutRecord | None = None
    away_since: float | None = None
    while True:
        try:
            for record in client.follow(f"/v1/rollouts/{part(identity)}/watch", RolloutRecord):
                away_since = None
                if record != last:
                    last = record
                    shown.show(record)
            if last is not None and last.is_over:
                return last
            # The controller stopped.
            failure = ApiFailed(f"the controller at {client.url} ended the stream; rollout {identity} goes on without")
        except ApiFailed as error:
            if error.status or last is None:
                raise
            failure = error
        now = time.monotonic()
        away_since = now if away_since is None else away_since
        if now - away_since > _AWAY_SECONDS:
            raise failure
        time.sleep(_RETRY_SECONDS)
