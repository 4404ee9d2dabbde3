"""Who acts: the value that servers make of a caller, and that records carry."""

from __future__ import annotations

from typing import Final, NamedTuple


class Actor(NamedTuple):
    """``kind`` says what the name rests on; a caller that proved nothing is anonymous."""

    name: str
    kind: str
    #: The peer's address without its port; "": not known.
    address: str = ""


ANONYMOUS: Final = "anonymous"
#: It sent the token of the control API.
TOKEN: Final = "token"
#: It sent a worker's control token, which only the fleet's controllers read.
CONTROLLER: Final = "controller"
#: The process itself.
PROCESS: Final = "process"


def anonymous(address: str = "") -> Actor:
    return Actor(ANONYMOUS, ANONYMOUS, address)
