"""What people read when a store fails."""

from __future__ import annotations

import pytest

from isochrone.errors import ConfigError, FetchFailed, NotFound
from isochrone.models.sources.failures import CredentialsRefused, explained, reason_of
from isochrone.models.sources.locations import RepositoryUrl

_URL = RepositoryUrl("s3", "bucket", "models")
_HEAD = "Generic S3 error: Error performing GET http://host/x in 1ms - HTTP error: error sending request"


@pytest.mark.parametrize(
    ("state", "named"),
    [
        ('ConnectError("tcp connect error", Os { code: 111, message: "Connection refused" })', "Connection refused"),
        ('ConnectError("dns error", Custom { error: "failed to lookup address information" })', "failed to lookup"),
        ("InvalidCertificate(\n    UnknownIssuer,\n)", "invalid certificate: UnknownIssuer"),
        ("kind: Timeout, source: reqwest::Error { kind: Request, source: TimedOut }", "no answer in time"),
    ],
)
def test_the_cause_of_a_failed_connection_is_named(state: str, named: str) -> None:
    reason = reason_of(f"{_HEAD}\n\nDebug source:\n{state}")
    assert reason.startswith(f"{_HEAD}: {named}")
    assert "Os {" not in reason


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        (
            '<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>AccessDenied</Code><Message>No &amp; no</Message>'
            "<Resource>/a</Resource><RequestId>4442587FB7D0A2F9</RequestId></Error>",
            "403 Forbidden: AccessDenied: No & no",
        ),
        ("\ufeff<?xml version='1.0'?><Error>\n<Code>AuthenticationFailed</Code></Error>", "403 Forbidden: Authentic"),
        ("<html>proxy</html>", "403 Forbidden: <html>proxy</html>"),
    ],
)
def test_of_an_answer_in_xml_code_and_message_are_shown(body: str, shown: str) -> None:
    head = "The operation lacked the necessary privileges to complete for path models/x: Error performing GET"
    text = f"{head} http://host/models/x in 1ms - Server returned non-2xx status code: 403 Forbidden: {body}"
    reason = str(explained(_URL, "list its files", RuntimeError(f"{text}\n\nDebug source:\n…"), 1, 0.0))
    assert shown in reason
    assert "RequestId" not in reason
    assert "given Error performing GET http://host/models/x" in reason


def test_an_unknown_cause_is_left_out() -> None:
    assert reason_of(f"{_HEAD}\n\nDebug source:\nsomething else") == _HEAD


def test_an_error_that_may_pass_counts_its_attempts_and_says_what_to_check() -> None:
    error = explained(_URL, "list its files", RuntimeError(_HEAD), 3, 4.2)
    assert isinstance(error, FetchFailed)
    assert str(error).startswith("s3://bucket/models: cannot list its files (3 attempts in 4 s): Generic S3 error")
    assert "AWS_ENDPOINT_URL" in str(error)


@pytest.mark.parametrize(("status", "is_refused"), [("401 Unauthorized", True), ("403", True), ("404", False)])
def test_an_error_that_lasts_is_one_of_the_configuration(status: str, is_refused: bool) -> None:
    error = explained(_URL, "list its files", RuntimeError(f"status code: {status}"), 1, 0.0)
    assert isinstance(error, ConfigError)
    assert isinstance(error, CredentialsRefused) is is_refused
    assert "s3://bucket/models" in str(error)


def test_missing_credentials_are_said_plainly() -> None:
    text = "Generic S3 error: Error performing PUT http://169.254.169.254/latest/api/token in 1ms - HTTP error"
    error = explained(_URL, "list its files", RuntimeError(text), 3, 12.0)
    assert "no credentials in the environment" in str(error)
    assert isinstance(error, FetchFailed), "the metadata service may be away for a moment"


def test_a_missing_object_is_not_found() -> None:
    assert isinstance(explained(_URL, "read m/x", FileNotFoundError("Object at location"), 1, 0.0), NotFound)


def test_a_long_reason_is_cut() -> None:
    assert len(str(explained(_URL, "read m/x", RuntimeError("x" * 5000), 1, 0.0))) < 700


@pytest.mark.parametrize(
    "address",
    [
        "http://user:passw0rd@host/x",
        "http://user:passw0rd@host/x?list-type=2",
        "https://passw0rd@host:9000/x",
        "https://host/x?sv=1&sig=passw0rd%3D",
        "https://us@er:passw0rd@host/x?sig=passw0rd",
    ],
)
def test_credentials_in_an_address_are_left_out(address: str) -> None:
    text = f"Generic S3 error: Error performing GET {address} in 1ms - HTTP error: error sending request"
    for error in (RuntimeError(text), RuntimeError(f"{text}: status code: 403 Forbidden")):
        shown = str(explained(_URL, "list its files", error, 1, 0.0))
        assert "passw0rd" not in shown
        assert "user" not in shown
        assert "://host" in shown
        assert "in 1ms - HTTP error" in shown
