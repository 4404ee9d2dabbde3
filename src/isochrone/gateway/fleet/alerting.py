"""What a policy that watches itself offers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable


@runtime_checkable
class Alerting(Protocol):
    """A policy that watches itself and says when it gives up."""

    on_alert: Callable[[str], None] | None
    #: What its own budget of time is kept by.
    timer: Callable[[], int] | None
