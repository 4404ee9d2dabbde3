"""Identities come from subject alternative names alone, URIs first."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isochrone.secure.certificates.identity import identities


@pytest.mark.parametrize(
    ("certificate", "expected"),
    [
        (None, ()),
        ({}, ()),
        ({"subject": ((("commonName", "admin"),),)}, ()),
        (
            {
                "subjectAltName": (
                    ("DNS", "B.example"),
                    ("URI", "spiffe://a/b"),
                    ("IP Address", "1.2.3.4"),
                    ("DNS", "b.example"),
                )
            },
            ("spiffe://a/b", "b.example"),
        ),
        # Neither kind can pass for the other.
        ({"subjectAltName": (("URI", "admin.example"), ("DNS", "spiffe://a/admin"), ("email", "a@b"))}, ()),
    ],
)
def test_only_names_that_the_signer_checks_count(certificate: dict[str, Any] | None, expected: tuple[str, ...]) -> None:
    assert identities(certificate) == expected


_KINDS = st.sampled_from(["DNS", "URI", "IP Address", "email", "DirName"])


@given(st.lists(st.tuples(_KINDS, st.text(max_size=12))))
def test_each_identity_was_named_as_its_kind(names: list[tuple[str, str]]) -> None:
    for identity in identities({"subjectAltName": tuple(names)}):
        kind = "URI" if ":" in identity else "DNS"
        assert any(
            each == kind and value in (identity, value) and value.lower() == identity.lower() for each, value in names
        )
