"""Names of certificates: what ``--host`` and ``--uri`` take, and what they refuse."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isochrone.errors import FlagError
from isochrone.secure.certificates.subject_names import SubjectNames, read_names


def test_hosts_are_names_or_addresses_without_duplicates() -> None:
    names = read_names(["Worker.internal", "10.0.0.7", "worker.internal", "[::1]", "*.svc"], ["spiffe://a.b/c"])
    assert names == SubjectNames(("worker.internal", "*.svc"), ("10.0.0.7", "::1"), ("spiffe://a.b/c",))
    assert str(names) == "spiffe://a.b/c, worker.internal, *.svc, 10.0.0.7, ::1"


@pytest.mark.parametrize(
    "host",
    ["", "a:80", "a b", "-a", "a-", "a..b", ".a", "a/b", "1.2.3", "1.2.3.256", "ä.de", "*", "a.*.b", "x" * 64, "a\n"],
)
def test_what_is_no_host_is_refused(host: str) -> None:
    with pytest.raises(FlagError, match="--host: expected a DNS name"):
        read_names([host], [])


@pytest.mark.parametrize(
    "uri", ["", "worker", "spiffe:", "spiffe://", "spiffe:///x", "https://a b", "http://ä/", "a://b\n"]
)
def test_what_is_no_uri_is_refused(uri: str) -> None:
    with pytest.raises(FlagError, match="--uri: expected a URI"):
        read_names([], [uri])


@pytest.mark.parametrize(
    "uri", ["spiffe://A/b", "spiffe://a:1/b", "spiffe://u@a/b", "spiffe://a/b?c", "spiffe://a/b#c"]
)
def test_a_spiffe_id_has_no_port_user_query_or_upper_case(uri: str) -> None:
    with pytest.raises(FlagError, match="--uri: expected a SPIFFE ID"):
        read_names([], [uri])


@given(st.lists(st.text(max_size=20), max_size=3), st.lists(st.text(max_size=20), max_size=3))
def test_any_text_is_a_name_or_an_error_of_its_flag(hosts: list[str], uris: list[str]) -> None:
    try:
        names = read_names(hosts, uris)
    except FlagError:
        return
    assert all(name.isascii() and ":" not in name for name in names.dns)
    assert all(uri.isascii() and ":" in uri for uri in names.uris)
    # Reading a result again changes nothing.
    assert read_names((*names.dns, *names.addresses), names.uris) == names
