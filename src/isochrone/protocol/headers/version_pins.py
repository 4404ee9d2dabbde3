"""The authority ``v2.detector.xds.isochrone.internal``: a gRPC call that goes to version 2 of the model detector.

A gRPC client without a proxy takes its routes from the control plane (xDS). It cannot change a message or add metadata
on the way, but it can replace the ``:authority`` of a call by the name of the endpoint that it chose (gRFC A81). So the
control plane names the endpoints by version, and the worker reads the pin here. The versions of an ensemble's stages
follow the model: ``v2.chain;a=1,b=4.xds.isochrone.internal``. Names are percent-encoded.

A call with an authority in this domain and without a version is rejected: its client did not replace it, and "latest"
would mean whatever each worker has loaded.
"""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import quote, unquote

from isochrone.errors import InvalidArgument
from isochrone.protocol.headers.stages import Stages, parse_stages

#: The domain of these names. Nothing resolves them.
DOMAIN = "xds.isochrone.internal"

_DOMAIN_BYTES = DOMAIN.encode()
#: Bytes of authorities that are remembered: some thousands. A count would not bound the lists of stages.
_MOST_BYTES = 256 * 1024
_PIN = re.compile(rb"v([1-9][0-9]{0,18})\.([^;]+?)(?:;(.+))?\.xds\.isochrone\.internal")


class Pin(NamedTuple):
    """The version that a call goes to."""

    model: str
    version: str
    #: Of an ensemble: the versions of its stages; None: the authority names none.
    stages: Stages | None


def is_of_pins(authority: bytes) -> bool:
    """Whether an authority is in the domain of pins."""
    return authority.endswith(_DOMAIN_BYTES)


class Pins:
    """The pins of authorities. Header blocks may differ in every call (``traceparent``); authorities recur."""

    def __init__(self) -> None:
        self._known: dict[bytes, Pin] = {}
        self._bytes = 0

    def of(self, authority: bytes) -> Pin | None:
        """The pin in an authority; None: it is not in the domain of pins. Raise ``InvalidArgument``."""
        if not authority.endswith(_DOMAIN_BYTES):
            return None
        pin = self._known.get(authority)
        if pin is None:
            pin = pin_of(authority)
            self._bytes += len(authority)
            if self._bytes > _MOST_BYTES:
                self._known.clear()
                self._bytes = len(authority)
            self._known[authority] = pin
        return pin


def pin_of(authority: bytes) -> Pin:
    """The pin in an authority of the domain. Raise ``InvalidArgument``."""
    found = _PIN.fullmatch(authority)
    if found is None:
        raise InvalidArgument(
            f"authority: expected a version as in v2.detector.{DOMAIN}, given '{authority.decode('latin-1')[:200]}'; "
            "set server_features: [xds_v3, trusted_xds_server] in the client's xDS bootstrap"
        )
    version, model, stages = found.groups()
    try:
        name = unquote(model.decode("latin-1"), errors="strict")
    except UnicodeDecodeError:
        raise InvalidArgument(f"authority: expected a model name in UTF-8, percent-encoded, given {model!r}") from None
    return Pin(name, version.decode(), None if stages is None else parse_stages(stages))


def pinned_authority(model: str, version: str, stages: bytes = b"") -> str:
    """The authority of calls to one version. ``stages``: as in the header ``x-isochrone-stages``."""
    return f"v{version}.{quote(model, safe='')}{';' if stages else ''}{stages.decode('ascii')}.{DOMAIN}"


def model_authority(model: str) -> str:
    """The name of a model for clients that follow the control plane: ``xds:///NAME``."""
    return f"{quote(model, safe='')}.{DOMAIN}"
