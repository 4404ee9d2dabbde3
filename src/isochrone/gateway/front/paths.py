"""The paths of REST requests that name a model. A gateway forwards these; a picker chooses workers for them."""

from __future__ import annotations

import re
from urllib.parse import unquote_to_bytes

from isochrone.errors import InvalidArgument

MODEL_PATH = re.compile(r"/v2/models/(?P<model>[^/]+)(?:/versions/(?P<version>[^/]+))?(?P<rest>/.*)?$")
GENERATE = frozenset(("generate", "generate_stream"))
INFERENCE = GENERATE | {"infer"}


def unquote(text: str) -> str:
    """A segment of a path, as its caller meant it."""
    try:
        return unquote_to_bytes(text).decode()
    except UnicodeDecodeError:
        raise InvalidArgument(f"the path's '{text[:100]}' is not valid UTF-8 when unquoted") from None
