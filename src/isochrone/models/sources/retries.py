"""When a failed call to an object store is repeated. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

_FIRST_SECONDS = 0.2
_LONGEST_SECONDS = 5.0
#: A client's error is repeated only if the server says that it is busy.
_CLIENT_ERROR = re.compile(r"status code: 4(?!08|29)[0-9]{2}")
#: In obstore's internal state: the answer to the first message of TLS is no TLS.
_WITHOUT_TLS = "InvalidContentType"
#: What no repetition changes: an http:// endpoint without permission, an https:// endpoint without TLS.
_LASTING = ("builder error", _WITHOUT_TLS)
#: obstore's words for an answer to a range with status 200, from object stores and from web servers.
_NOT_PARTIAL = ("non-partial response when range requested", "Range request not supported")
_METADATA_SERVICES = ("169.254.169.254", "metadata.google.internal")
_REFUSED = re.compile(r"status code: 40[13]\b")
_REFUSED_TYPES = frozenset(("PermissionDeniedError", "UnauthenticatedError"))
_LASTING_TYPES = frozenset(
    (
        "FileNotFoundError",
        "InvalidPathError",
        "LibraryPanic",
        "NotSupportedError",
        "UnknownConfigurationKeyError",
        "ValueError",
        *_REFUSED_TYPES,
    )
)


@dataclass(frozen=True, slots=True)
class Patience:
    """How long failures in a row are endured. Progress starts the time again."""

    seconds: float

    def pause(self, failures: int, elapsed: float, random: float) -> float | None:
        """Seconds to wait after so many failures in a row; None: give up. ``random`` is from 0 to 1.

        The pauses double, and half of each is random, so that the workers of a fleet do not come back all at once.
        """
        pause = min(_LONGEST_SECONDS, _FIRST_SECONDS * 2.0 ** min(failures - 1, 16)) * (0.5 + random / 2)
        return pause if elapsed + pause <= self.seconds else None


def is_lasting(error: BaseException) -> bool:
    """Whether the same call would fail again."""
    text = str(error)
    if is_of_metadata_service(text):
        # It is throttled, and away while a machine starts.
        return False
    if type(error).__name__ in _LASTING_TYPES or any(phrase in text for phrase in _LASTING):
        return True
    return _CLIENT_ERROR.search(text) is not None


def is_without_ranges(error: BaseException) -> bool:
    """Whether the store answered a request for a range with another status than 206."""
    return any(phrase in str(error) for phrase in _NOT_PARTIAL)


def is_without_tls(error: BaseException) -> bool:
    """Whether an https:// endpoint answered in plain HTTP, or another protocol."""
    return _WITHOUT_TLS in str(error)


def is_of_metadata_service(text: str) -> bool:
    """Whether the service failed by which a machine of a cloud gets its credentials."""
    return any(service in text for service in _METADATA_SERVICES)


def is_refused(error: BaseException) -> bool:
    """Whether the store did not accept the credentials."""
    return type(error).__name__ in _REFUSED_TYPES or _REFUSED.search(str(error)) is not None
