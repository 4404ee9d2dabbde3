"""Names of models: plain names of directories. They also come from the network. Pure."""

from __future__ import annotations

from isochrone.errors import InvalidArgument

_LONGEST_NAME = 255
_MEASURED = "isochrone-measured-"
#: Seconds that one measurement of a model may take in a fleet: controllers unload what a killed command left.
MEASURED_SECONDS = 600.0


def validate_model_name(name: str) -> None:
    """Rejects a name that is not a plain directory name."""
    if is_model_name(name):
        return
    raise InvalidArgument(
        "model name: expected one directory name of at most 255 bytes, without '/', '\\' or control"
        f" characters and not starting with '.', given {name[:_LONGEST_NAME]!r}"
    )


def is_model_name(name: str) -> bool:
    """Whether a directory of this name is a model."""
    if not name or name.startswith(".") or "/" in name or "\\" in name:
        return False
    try:
        length = len(name.encode("utf-8"))
    except UnicodeEncodeError:
        return False
    return length <= _LONGEST_NAME and name.isprintable()


def measured_name(unique: str) -> str:
    """The name of a model that a command loads into a worker, times and unloads: no model of its repository."""
    return _MEASURED + unique


def is_measured(name: str) -> bool:
    return name.startswith(_MEASURED)
