"""What a request needs: the permission of its API, and the model that its path names. Pure.

An API that is not known here needs a permission that nobody has: what is forgotten is closed.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import unquote_to_bytes

from isochrone.protocol.access.restrictions import grpc_api, rest_api
from isochrone.secure.access.permissions import METADATA, METRICS, RECORDS

if TYPE_CHECKING:
    from isochrone.wire.exchange import Head

#: Of what no permission covers.
NOBODY: Final = "nobody"

_MODEL = re.compile(r"/v2/(?:repository/)?models/(?P<model>[^/]+)(?:/|$)|/v1/models/(?P<openai>[^/]+.*)$")
#: Reading the list of models changes nothing: gateways do it once a second.
_INDEX = re.compile(r"/v2/repository/index/?")
_INDEX_METHOD = "/inference.GRPCInferenceService/RepositoryIndex"
#: Not a model: the statistics of all.
_ALL_STATISTICS = re.compile(r"/v2/models/stats/?$")


class Need(NamedTuple):
    """``model`` "": all models, or a message that is not read yet names it."""

    permission: str
    model: str = ""


def needed_by(head: Head) -> Need:
    """What a request of the protocol needs, by its head."""
    if (head.get(b"content-type") or b"").startswith(b"application/grpc"):
        path = head.target.decode("latin-1")
        if path.endswith(".ServerReflection/ServerReflectionInfo"):
            return Need(METADATA)
        return Need(METADATA if path == _INDEX_METHOD else grpc_api(path) or NOBODY)
    path = head.target.partition(b"?")[0].decode("latin-1")
    if _INDEX.fullmatch(path):
        return Need(METADATA)
    return Need(rest_api(path) or NOBODY, _model_in(path))


def needed_by_page(head: Head) -> Need:
    """The same of a port that serves metrics, and pages about recorded requests."""
    path = head.target.partition(b"?")[0].rstrip(b"/")
    return Need(METRICS if path == b"/metrics" else RECORDS)


def _model_in(path: str) -> str:
    found = None if _ALL_STATISTICS.match(path) else _MODEL.match(path)
    if found is None:
        return ""
    return unquote_to_bytes(found["model"] or found["openai"].rstrip("/")).decode("utf-8", "replace")
