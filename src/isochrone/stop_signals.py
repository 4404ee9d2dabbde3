"""The signals on which every serving command drains and stops."""

from __future__ import annotations

import signal


def stop_signals() -> tuple[signal.Signals, ...]:
    """SIGTERM, SIGINT, and SIGHUP, which a closing terminal sends.

    Without SIGHUP if the process was started with it ignored (``nohup``): it shall outlive its terminal.
    """
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        return signal.SIGTERM, signal.SIGINT
    return signal.SIGTERM, signal.SIGINT, signal.SIGHUP
