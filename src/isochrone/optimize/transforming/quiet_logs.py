"""Suppresses the log lines of onnxruntime's quantizer, which advises at length, and only while it runs."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet_logs() -> Iterator[None]:
    """Inside, no logger of this process emits warnings or less. Afterwards they emit what they did before."""
    before = logging.root.manager.disable
    logging.disable(max(before, logging.WARNING))
    try:
        yield
    finally:
        logging.disable(before)
