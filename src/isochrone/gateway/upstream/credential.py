"""What a gateway proves to workers: who it is with its own questions, and who its caller is with a request.

A caller's token is passed on as it came. In a fleet with a key, callers without one are named by a signed header.
"""

from __future__ import annotations

from pathlib import Path

from isochrone.errors import FlagError
from isochrone.secure.access.internal import ON_BEHALF, InternalCallers
from isochrone.wire.exchange import Headers


class Credential:
    """Of a gateway that proves nothing."""

    #: Its own questions carry it only to workers of the fleet: others could repeat it.
    is_internal = False

    def fields(self) -> Headers:
        """The header fields of a question of the gateway's own."""
        return ()

    def for_caller(self, passed: Headers, peer: tuple[str, ...]) -> Headers:
        """The header fields of a request for a caller. ``passed``: its own that are passed on; ``peer``: the names in
        its certificate."""
        return ()


class InternalCredential(Credential):
    """Of a gateway in a fleet with a key."""

    is_internal = True

    def __init__(self, callers: InternalCallers) -> None:
        self._callers = callers
        self._own: Headers = ((b"authorization", b"Bearer " + callers.gateway_token.encode()),)

    def fields(self) -> Headers:
        return self._own

    def for_caller(self, passed: Headers, peer: tuple[str, ...]) -> Headers:
        # Without it, a worker would take the certificate of the gateway's own connection for the caller's.
        if any(name == b"authorization" and value for name, value in passed):
            return ()
        return ((ON_BEHALF, self._callers.attest(peer)),)


class OwnCredential(Credential):
    """The token in a file, read again when the file changes; a file that cannot be read keeps the last token."""

    def __init__(self, path: Path | None, flag: str = "--upstream-token-file") -> None:
        """None: there is none. Raises ``FlagError`` if the file has no token."""
        self._path = path
        self._stamp: tuple[int, int] | None = None
        self.headers: Headers = ()
        if path is not None and not self._read():
            raise FlagError(flag, "a file with one token", f"{path}, which has none")

    def fields(self) -> Headers:
        if self._path is not None:
            self._read()
        return self.headers

    def _read(self) -> bool:
        """Whether the file has a token."""
        assert self._path is not None
        try:
            found = self._path.stat()
            stamp = (found.st_mtime_ns, found.st_ino)
            if stamp == self._stamp:
                return bool(self.headers)
            token = self._path.read_bytes().strip()
        except OSError:
            return bool(self.headers)
        if not token or not token.isascii() or b" " in token or b"\n" in token:
            return bool(self.headers)
        self._stamp = stamp
        self.headers = ((b"authorization", b"Bearer " + token),)
        return True
