"""The ends of connections without sockets: those of the tests of ``isochrone.wire``."""

from __future__ import annotations

import sys
from pathlib import Path

_WIRE_TESTS = str(Path(__file__).parents[2] / "tests" / "wire")
if _WIRE_TESTS not in sys.path:
    sys.path.append(_WIRE_TESTS)

from wire_fakes import FakeTransport, ManualLoop, RecordingReceiver, ServerEnd  # noqa: E402

__all__ = ["FakeTransport", "ManualLoop", "RecordingReceiver", "ServerEnd"]
