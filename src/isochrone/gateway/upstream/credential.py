"""The credential that a gateway's own questions to workers carry: the token in a file, which may be replaced."""

from __future__ import annotations

from pathlib import Path

from isochrone.errors import FlagError
from isochrone.wire.exchange import Headers


class OwnCredential:
    """Read again when the file changes; a file that cannot be read keeps the last token."""

    def __init__(self, path: Path | None, flag: str = "--upstream-token-file") -> None:
        """None: there is none. Raises ``FlagError`` if the file has no token."""
        self._path = path
        self._stamp: tuple[int, int] | None = None
        self.headers: Headers = ()
        if path is not None and not self._read():
            raise FlagError(flag, "a file with one token", f"{path}, which has none")

    def fields(self) -> Headers:
        """The header fields of a question."""
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
