"""Personal data is redacted before it is recorded."""

from __future__ import annotations

from pathlib import Path

import pytest
from audit_logs import request
from hypothesis import given
from hypothesis import strategies as st

from isochrone.errors import FlagError
from isochrone.secure.audit.actor import Actor
from isochrone.secure.audit.keys import AuditKey, read_key
from isochrone.secure.audit.redaction import FIELDS, WAYS, Redaction, read_rules
from isochrone.secure.audit.settings import read_audit

KEY = AuditKey(b"0123456789abcdef")


@given(st.text(min_size=5), st.text(min_size=5))
def test_a_hash_recognises_an_agent_and_does_not_name_it(one: str, other: str) -> None:
    redaction = Redaction([("agent", "hash")], KEY)
    values = [redaction.apply(request(0, agent=agent)).details["agent"] for agent in (one, one, other)]
    assert values[0] == values[1]
    assert (values[0] == values[2]) == (one == other)
    assert one not in values[0]


def test_hashes_depend_on_the_key_and_differ_from_seals() -> None:
    other = AuditKey(b"0123456789abcdeg")
    assert KEY.redacted("robot-17") != other.redacted("robot-17")
    assert KEY.seal(b"robot-17")[:24] not in KEY.redacted("robot-17")


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("way", WAYS)
def test_every_field_in_every_way(field: str, way: str) -> None:
    secret = "192.168.77.66" if field == "address" else "someone-special"
    entry = request(0, **{name: secret for name in FIELDS if name not in ("name", "address")})
    entry = entry._replace(actor=Actor("someone-special", "certificate", "192.168.77.66"))
    redacted = Redaction([(field, way)], KEY).apply(entry)
    values = {"name": redacted.actor.name, "address": redacted.actor.address, **redacted.details}
    assert secret not in str(values[field])
    # And nothing else is touched.
    assert all(
        value == (entry.actor._asdict() | entry.details)[name] for name, value in values.items() if name != field
    )


@pytest.mark.parametrize(
    ("address", "kept"),
    [("10.2.3.4", "10.2.3.0"), ("2001:db8:aa:bb::1", "2001:db8:aa::"), ("a-name", ""), ("::1", "::")],
)
def test_of_an_address_its_network_is_left(address: str, kept: str) -> None:
    entry = request(0)._replace(actor=Actor("a", "token", address))
    assert Redaction([("address", "truncate")], None).apply(entry).actor.address == kept


@pytest.mark.parametrize(
    ("text", "has_key", "message"),
    [
        ("agent", True, "FIELD=WAY"),
        ("colour=drop", True, "FIELD=WAY"),
        ("agent=encrypt", True, "FIELD=WAY"),
        ("agent=hash", False, "--audit-key"),
        (",", True, "FIELD=WAY"),
    ],
)
def test_rules_that_are_none(text: str, has_key: bool, message: str) -> None:
    with pytest.raises(FlagError, match=message):
        read_rules(text, has_key)


def test_the_last_rule_of_a_field_counts() -> None:
    assert read_rules("agent=hash, address=truncate,agent=drop", True) == (("agent", "drop"), ("address", "truncate"))


@pytest.mark.parametrize("content", [b"", b"short", b"x" * 5000, b"   12345678   "])
def test_files_that_hold_no_key(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "key").write_bytes(content)
    with pytest.raises(FlagError, match="16 to 4096 bytes"):
        read_key(str(tmp_path / "key"))
    with pytest.raises(FlagError, match="can be read"):
        read_key(str(tmp_path / "nothing"))


def test_flags_need_the_directory_and_a_name_that_is_a_directory() -> None:
    assert read_audit("", False, "", 0.0, "", "gw", "gateway") is None
    for given_flags in ((True, "", 0.0, ""), (False, "key", 0.0, ""), (False, "", 3.0, ""), (False, "", 0.0, "a=b")):
        with pytest.raises(FlagError, match="--audit DIRECTORY"):
            read_audit("", *given_flags, "gw", "gateway")
    for name in ("../gw", "a/b", ".hidden", "a b", "x" * 200):
        with pytest.raises(FlagError, match="--name"):
            read_audit("/logs", False, "", 0.0, "", name, "gateway")
    settings = read_audit("/logs", True, "", 30.0, "address=drop", "", "gateway")
    assert settings is not None
    assert settings.name.endswith("-gateway")
    assert settings.of_process(2).log_directory == Path("/logs") / f"{settings.name}.2"
