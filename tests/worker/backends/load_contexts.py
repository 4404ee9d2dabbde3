"""The type of the fixture ``make_context``, for tests in every folder of the backends."""

from __future__ import annotations

from collections.abc import Callable

from isochrone.worker.backends.interface import LoadContext

MakeContext = Callable[..., LoadContext]
