"""The logins of a user, in a file that only this user can read: one per control API.

Commands run side by side, and a provider that rotates refresh tokens takes the second use of one for theft: whoever
renews a login holds the lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from isochrone.secure.oidc.login.failures import LoginFailed

_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO
_READ: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


def has_logins() -> bool:
    """Whether this user may have logins. Reads no file."""
    try:
        return _usual_path().exists()
    except (LoginFailed, OSError):
        return False


class KeptLogin(msgspec.Struct, frozen=True):
    """``expires`` in seconds since 1970."""

    issuer: str
    client_id: str
    audience: str
    subject: str
    name: str
    token: str
    expires: float
    refresh_token: str = ""
    #: Of a service account, the absolute path of its secret: it is read again for each new token.
    secret_file: str = ""
    ca: str = ""
    name_claim: str = "sub"
    algorithms: tuple[str, ...] = ()
    scopes: tuple[str, ...] = ()
    login_parameters: Mapping[str, str] = {}


class KeptLogins:
    def __init__(self, path: Path | None = None) -> None:
        self.path = path or _usual_path()

    def read(self) -> dict[str, KeptLogin]:
        """By the origin of the control API."""
        try:
            with os.fdopen(os.open(self.path, _READ), "rb") as file:
                found = os.fstat(file.fileno())
                if found.st_uid != os.geteuid() or found.st_mode & _OTHERS:
                    raise LoginFailed(f"{self.path}: others can read it; run chmod 600 {self.path} and log in again")
                return msgspec.json.decode(file.read(), type=dict[str, KeptLogin])
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise LoginFailed(f"{self.path}: {error.strerror}") from None
        except msgspec.DecodeError:
            raise LoginFailed(f"{self.path}: damaged; remove it and log in again") from None

    def get(self, origin: str) -> KeptLogin | None:
        return self.read().get(origin)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """One process at a time. Not for the same thread twice."""
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = os.open(self.path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise LoginFailed(f"{self.path.parent}: {error.strerror}") from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    def put(self, origin: str, login: KeptLogin | None) -> None:
        """Keep a login, or remove it. With the lock held."""
        logins = self.read()
        if login is not None:
            logins[origin] = login
        else:
            logins.pop(origin, None)
        self._write(msgspec.json.format(msgspec.json.encode(logins)))

    def _write(self, content: bytes) -> None:
        unfinished = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        try:
            with contextlib.suppress(FileNotFoundError):
                unfinished.unlink()
            file = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with os.fdopen(file, "wb") as opened:
                opened.write(content)
                opened.flush()
                # A refresh token that was rotated and not kept is a login that is lost.
                os.fsync(opened.fileno())
            unfinished.replace(self.path)
        except OSError as error:
            raise LoginFailed(f"{self.path}: {error.strerror}") from None
        finally:
            with contextlib.suppress(OSError):
                unfinished.unlink()


def _usual_path() -> Path:
    """In the configuration directory of the XDG base directory specification, which says to ignore relative paths."""
    given = os.environ.get("XDG_CONFIG_HOME", "")
    try:
        base = Path(given) if os.path.isabs(given) else Path.home() / ".config"
    except RuntimeError:
        raise LoginFailed("this user has no home directory; set XDG_CONFIG_HOME") from None
    return base / "isochrone" / "logins.json"
