"""Errors of obstore in the words of people: what failed, why, and what to check. Pure."""

from __future__ import annotations

import re

from isochrone.errors import ConfigError, FetchFailed, IsochroneError, NotFound
from isochrone.models.sources.locations import RepositoryUrl
from isochrone.models.sources.retries import is_lasting, is_of_metadata_service, is_refused

#: Environment variables that permit endpoints without TLS.
ALLOW_HTTP = {"s3": "AWS_ALLOW_HTTP", "gs": "GOOGLE_ALLOW_HTTP", "az": "AZURE_ALLOW_HTTP"}
_LONGEST_REASON = 300
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
#: In a URL: user and password, and the query, in which signatures are.
_SECRETS = re.compile(r"://(?:[^/?#\s]*@)?([^?#\s]*)(?:\?[^\s)\"']*)?")


class CredentialsRefused(ConfigError):
    """A store answered that the credentials are wrong, have expired, or do not suffice."""


class StrayKey(ConfigError):
    """A key in the store cannot be the path of a file: it has an empty part, ".", ".." or a control character."""


def reason_of(text: str) -> str:
    """The reason in the text of obstore's error, without its internal state, credentials and signatures."""
    reason, _, state = text.partition("\n\nDebug source")
    if "error sending request" in reason:
        causes = [form.format(found[1]) for pattern, form in _CAUSES if (found := pattern.search(state))]
        reason = f"{reason}: {causes[0]}" if causes else reason
    return _SECRETS.sub(r"://\1", " ".join(reason.split()))


def explained(url: RepositoryUrl, task: str, error: BaseException, failures: int, elapsed: float) -> IsochroneError:
    """The error of a call that is not repeated, for people."""
    reason = reason_of(str(error))
    check = f"check {_CHECK[url.scheme]}"
    if "builder error" in reason:
        check = f"for an endpoint without TLS set {ALLOW_HTTP.get(url.scheme, '')}=true"
    elif is_of_metadata_service(reason):
        reason = "no credentials in the environment, and this machine has no metadata service that gives any"
    if len(reason) > _LONGEST_REASON:
        reason = reason[:_LONGEST_REASON] + "…"
    if isinstance(error, FileNotFoundError):
        return NotFound(f"{url}: cannot {task}: no such object")
    if type(error).__name__ == "InvalidPathError":
        expected = "keys without empty parts, '.', '..' and control characters (remove the object, or add a manifest)"
        return StrayKey("model repository", str(url), expected, reason)
    if is_refused(error) and is_lasting(error):
        return CredentialsRefused("model repository", str(url), f"to {task}", f"{reason}; {check}")
    if is_lasting(error):
        return ConfigError("model repository", str(url), f"to {task}", f"{reason}; {check}")
    return FetchFailed(f"{url}: cannot {task} ({failures} attempts in {elapsed:.0f} s): {reason}; {check}")
