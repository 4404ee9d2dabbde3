"""Importing this before onnxruntime turns its telemetry off.

onnxruntime's wheels report usage to their maker, and write to the user's cache directory, unless this variable is set
before the import. A server does not do that unasked; a user who has set the variable has decided.
"""

from __future__ import annotations

import os

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
