"""Errors of obstore in the words of people: what failed, why, and what to check. Pure."""

from __future__ import annotations

import html
import re

from isochrone.errors import ConfigError, FetchFailed, IsochroneError, NotFound, Unsupported
from isochrone.models.sources.locations import RepositoryUrl
from isochrone.models.sources.manifest import MANIFEST
from isochrone.models.sources.retries import (
    is_lasting,
    is_of_metadata_service,
    is_refused,
    is_without_tls,
)

#: Environment variables that permit endpoints without TLS.
ALLOW_HTTP = {"s3": "AWS_ALLOW_HTTP", "gs": "GOOGLE_ALLOW_HTTP", "az": "AZURE_ALLOW_HTTP"}
_LONGEST_REASON = 400
_CHECK = {
    "s3": "the bucket, AWS_ENDPOINT_URL, AWS_REGION and the credentials (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, or a"
    " role of this machine)",
    "gs": "the bucket and the credentials (GOOGLE_APPLICATION_CREDENTIALS, or a service account of this machine)",
    "az": "the container, AZURE_STORAGE_ACCOUNT_NAME and the credentials (AZURE_STORAGE_ACCOUNT_KEY, or a managed"
    " identity)",
    "https": "the address and the server",
    "http": "the address and the server",
}
#: The causes of a failed connection in obstore's internal state, of which its own message says nothing.
_CAUSES = (
    (re.compile(r'message: "([^"]+)"'), "{}"),
    (re.compile(r'error: "([^"]+)"'), "{}"),
    (re.compile(r"InvalidCertificate\(\s*(\w+)"), "invalid certificate: {}; a private CA goes into SSL_CERT_FILE"),
    (re.compile(r"source: (TimedOut)"), "no answer in time"),
)
#: The body of a store's error, which has its reason after ids and addresses that say nothing to people.
_XML = re.compile(r"\ufeff?(?:<\?xml[^>]*>\s*)?<Error\b.*", re.DOTALL)
_REFUSAL = re.compile(r"The operation lacked [\w ]+ for path \S+: ")
#: In a URL: user and password, and the query, in which signatures are.
_SECRETS = re.compile(r"://(?:[^/?#\s]*@)?([^?#\s]*)(?:\?[^\s)\"']*)?")


class LibraryPanic(Exception):
    """obstore panicked: by its own words a fault in it, mostly an address or a setting that it cannot parse."""


class panics_as_errors:  # noqa: N801 (used like a function, as contextlib's own)
    """Turns a panic of obstore, which is no ``Exception``, into one. Everything else passes."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        # pyo3 makes the class in each library anew: it can be recognised by its name alone.
        if kind is not None and kind.__name__ == "PanicException" and not issubclass(kind, Exception):
            raise LibraryPanic(f"obstore panicked: {error}") from None


class CredentialsRefused(ConfigError):
    """A store answered that the credentials are wrong, have expired, or do not suffice."""


class PackageMissing(ConfigError):
    """obstore is an optional dependency."""

    def __init__(self, url: RepositoryUrl) -> None:
        remedy = "pip install 'isochrone[object-stores]'"
        super().__init__("model repository", str(url), f"the package obstore, which {url} needs: {remedy}", "none")
        self.args = (f"{url} needs the package obstore: {remedy}",)


class RangesIgnored(Unsupported):
    """A store answers a request for a range with status 200: its files can only be read as a whole."""


def reason_of(text: str) -> str:
    """The reason in the text of obstore's error, without its internal state, credentials and signatures."""
    reason, _, state = text.partition("\n\nDebug source")
    if "error sending request" in reason:
        causes = [form.format(found[1]) for pattern, form in _CAUSES if (found := pattern.search(state))]
        reason = f"{reason}: {causes[0]}" if causes else reason
    return _SECRETS.sub(r"://\1", " ".join(_without_xml(reason).split()))


def _without_xml(reason: str) -> str:
    body = _XML.search(reason)
    if body is None:
        return reason
    stated = [re.search(f"<{tag}>([^<]+)</{tag}>", body[0]) for tag in ("Code", "Message")]
    return reason[: body.start()] + ": ".join(html.unescape(found[1]) for found in stated if found)


def explained(url: RepositoryUrl, task: str, error: BaseException, failures: int, elapsed: float) -> IsochroneError:
    """The error of a call that is not repeated, for people."""
    reason = _REFUSAL.sub("", reason_of(str(error)), count=1)
    check = f"check {_CHECK[url.scheme]}"
    if "builder error" in reason:
        check = f"for an endpoint without TLS set {ALLOW_HTTP.get(url.scheme, '')}=true"
    elif is_without_tls(error):
        check = "the server answers without TLS: check the port, or use http:// for a server without TLS"
        check += f" (in AWS_ENDPOINT_URL, with {ALLOW_HTTP['s3']}=true)" if url.scheme == "s3" else ""
    elif is_of_metadata_service(reason):
        reason = "no credentials in the environment, and this machine has no metadata service that gives any"
    if len(reason) > _LONGEST_REASON:
        reason = reason[:_LONGEST_REASON] + "…"
    if MANIFEST in reason and url.has_listing:
        reason += f" ({MANIFEST} is optional and read first)"
    if isinstance(error, FileNotFoundError):
        return NotFound(f"{url}: cannot {task}: no such object")
    if is_refused(error) and is_lasting(error):
        return CredentialsRefused("model repository", str(url), f"permission to {task}", f"{reason}; {check}")
    if is_lasting(error):
        return ConfigError("model repository", str(url), f"to {task}", f"{reason}; {check}")
    return FetchFailed(f"{url}: cannot {task} ({failures} attempts in {elapsed:.0f} s): {reason}; {check}")
