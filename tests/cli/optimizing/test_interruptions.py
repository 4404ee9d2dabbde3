"""Signals that end a measuring command: cleaned up once, undisturbed, with the status that shells expect."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import typer

from isochrone.cli.optimizing.interruptions import exits_on_signals


@pytest.fixture(autouse=True)
def sighup_is_not_ignored() -> Iterator[None]:
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_exit_status_names_the_signal(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with pytest.raises(typer.Exit) as ended, exits_on_signals():
        signal.raise_signal(number)
    assert ended.value.exit_code == 128 + number
    assert signal.getsignal(number) is before


def test_further_signals_do_not_disturb_the_cleaning_up() -> None:
    steps = []

    @contextmanager
    def cleaned_up() -> Iterator[None]:
        try:
            yield
        finally:
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                signal.raise_signal(number)
                steps.append(number)

    with pytest.raises(typer.Exit) as ended, exits_on_signals(), cleaned_up():
        signal.raise_signal(signal.SIGTERM)
    assert ended.value.exit_code == 143
    assert len(steps) == 3


def test_errors_pass() -> None:
    with pytest.raises(ValueError, match="wrong"), exits_on_signals():
        raise ValueError("wrong")


def test_other_threads_change_no_handlers() -> None:
    before = signal.getsignal(signal.SIGTERM)
    seen = []

    def run() -> None:
        with exits_on_signals():
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [before]
