"""How this installation was built."""

from __future__ import annotations

from isochrone import clock

#: Whether the modules that every request passes are compiled; one stands for all, since they are built together.
IS_COMPILED = not str(clock.__file__).endswith(".py")
