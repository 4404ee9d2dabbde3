"""Where a model repository is: a directory of this machine, or a URL. Pure."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from pathlib import Path

from isochrone.errors import ConfigError

#: Scheme → an example, for errors.
_EXAMPLES = {
    "s3": "s3://bucket/prefix",
    "gs": "gs://bucket/prefix",
    "az": "az://container/prefix",
    "https": "https://host/path",
}
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://", re.ASCII)
#: A URL that lost a slash, as after ``os.path.normpath``. Directories are not called so.
_ONE_SLASH = re.compile(r"(s3|gs|az|https?):/(?!/)", re.ASCII | re.IGNORECASE)
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,221}", re.ASCII)
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?)(:[0-9]{1,5})?", re.ASCII)
_WHERE = "model repository"


@dataclass(frozen=True, slots=True)
class RepositoryUrl:
    """A repository in an object store or on a web server. It has no credentials."""

    scheme: str
    #: The bucket, the container, or the host with its port.
    host: str
    #: Without a slash at either end; "": the root.
    prefix: str

    def __str__(self) -> str:
        return f"{self.scheme}://{self.host}" + (f"/{self.prefix}" if self.prefix else "")

    @property
    def parent(self) -> RepositoryUrl:
        return RepositoryUrl(self.scheme, self.host, self.prefix.rpartition("/")[0])

    @property
    def has_listing(self) -> bool:
        """Whether the store can be asked for its objects; a web server cannot."""
        return self.scheme in ("s3", "gs", "az")


Location = Path | RepositoryUrl


def is_url(text: str) -> bool:
    return _SCHEME.match(text) is not None


def parse_location(text: str) -> Location:
    """A path as it is, or a checked URL. Raises ``ConfigError``."""
    match = _SCHEME.match(text)
    if match is None:
        if torn := _ONE_SLASH.match(text):
            rest = text[torn.end() :]
            # Neither credentials nor signatures are shown.
            shown = rest if not re.search("[@?]", rest) else "…"
            raise _wrong(f"two slashes after the scheme, as in '{torn[1]}://{shown}'", f"'{torn[1]}:/{shown}'")
        return Path(text)
    scheme, rest = match[1].lower(), text[match.end() :]
    host, _, path = rest.partition("/")
    if "@" in host:
        expected = "a URL without credentials (they come from the environment: docs/model-sources.md)"
        raise ConfigError(_WHERE, "URL", expected, f"'{scheme}://…@{host.rpartition('@')[2]}'")
    if scheme not in _EXAMPLES and not (scheme == "http" and _is_loopback(host)):
        given = repr(text) if scheme != "http" else f"{text!r}: plain HTTP is for this machine alone"
        raise _wrong(f"a path or a URL such as {', '.join(_EXAMPLES.values())}", given)
    example = _EXAMPLES.get(scheme, _EXAMPLES["https"])
    if not (_HOST if scheme in ("https", "http") else _BUCKET).fullmatch(host):
        raise _wrong(f"a URL such as {example}", repr(text))
    if re.search(r"[?#\\%\s]", path) or not path.isprintable():
        # A signed URL has its signature in the query: it would be a credential, and could not be extended by a path.
        raise _wrong(f"a URL such as {example}, without '?', '#', '%', '\\' or spaces", repr(text.partition("?")[0]))
    prefix = path.strip("/")
    if any(part in ("", ".", "..") for part in prefix.split("/")) and prefix:
        raise _wrong("a URL without empty parts, '.' or '..' in its path", repr(text))
    return RepositoryUrl(scheme, host, prefix)


def _wrong(expected: str, given: str) -> ConfigError:
    return ConfigError(_WHERE, "URL", expected, given)


def _is_loopback(host: str) -> bool:
    name = re.sub(r":[0-9]+$", "", host).strip("[]")
    try:
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
