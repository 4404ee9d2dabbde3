"""The header ``x-isochrone-stages: preprocess=2,detector=2``: the versions that the steps of an ensemble run.

The gateway adds it to ensemble requests from the committed epoch, so that all steps of a request come from one epoch,
whatever a worker has loaded in the meantime. The transports read it once per distinct message head, as an HTTP header
or as gRPC metadata. Model names are percent-encoded.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import quote, unquote

from isochrone.errors import InvalidArgument

STAGES_HEADER: Final = b"x-isochrone-stages"

#: Model → version.
Stages = Mapping[str, str]

_VERSION = re.compile(r"[1-9][0-9]{0,18}", re.ASCII)


def parse_stages(value: bytes) -> dict[str, str]:
    stages: dict[str, str] = {}
    for part in value.decode("latin-1").split(","):
        name, equals, version = (word.strip() for word in part.partition("="))
        if not name or not equals or not _VERSION.fullmatch(version):
            raise _invalid("model=version pairs as in preprocess=2,detector=2", part)
        model = _unquoted(name)
        if stages.setdefault(model, version) != version:
            raise _invalid(f"one version of '{model}'", f"{stages[model]} and {version}")
    return stages


def write_stages(stages: Stages) -> str:
    """The header's value."""
    return ",".join(f"{quote(model, safe='')}={version}" for model, version in stages.items())


def _unquoted(name: str) -> str:
    try:
        return unquote(name, errors="strict")
    except UnicodeDecodeError:
        raise _invalid("model names in UTF-8, percent-encoded", name) from None


def _invalid(expected: str, given: str) -> InvalidArgument:
    return InvalidArgument(f"header x-isochrone-stages: expected {expected}, given {given[:100]!r}")


def stages_value(stages: Stages) -> bytes:
    """The header's value. Equal mappings give equal bytes, so that heads repeat and are memoised."""
    return ",".join(f"{quote(model, safe='')}={version}" for model, version in sorted(stages.items())).encode("ascii")
