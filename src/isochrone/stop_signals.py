"""Which signals end a process in good order: every command that serves listens to the same ones."""

from __future__ import annotations

import signal


def stop_signals() -> tuple[signal.Signals, ...]:
    """SIGTERM, SIGINT, and SIGHUP: a terminal that closes ends what runs in it, but not without draining.

    A process that was started with SIGHUP ignored (``nohup``) is meant to outlive its terminal, and stays deaf to it.
    """
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        return signal.SIGTERM, signal.SIGINT
    return signal.SIGTERM, signal.SIGINT, signal.SIGHUP
