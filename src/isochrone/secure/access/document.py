"""The access file: YAML or JSON with tokens, roles and who has them. Errors name file, line, key and what is expected.

.. code-block:: yaml

    tokens:
      robots: {sha256: 5f2b…, expires: 2027-06-01}
    roles:
      vision: [{may: [inference, metadata], models: ["vision-*"], priority: 2}]
    providers:
      plant: {issuer: https://login.example/realms/robots, audience: https://fleet.example}
    assign:
      - {to: ["token:robots", "group:plant/pilots"], roles: [vision]}
    anonymous: [health]
    tenants:
      plant-a: ["group:plant/plant-a", "token:robots"]
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, time
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, ValidationError

from isochrone.errors import ConfigError
from isochrone.secure.access.identity import ANONYMOUS
from isochrone.secure.access.permissions import BUILT_IN, HEALTH, PERMISSIONS
from isochrone.secure.access.policy import Assignment, Policy, Rule, Tenant
from isochrone.secure.access.tokens import TokenRecord
from isochrone.secure.oidc.settings import Provider, provider_of
from isochrone.settings.documents import Document, as_mapping, parse_document, read_text
from isochrone.settings.expectations import problems_of
from isochrone.settings.problems import Path as KeyPath
from isochrone.settings.problems import Problem, SettingsError, settings_error
from isochrone.settings.sections import Section
from isochrone.suggestions import choice, suggestion

_DIGEST = re.compile(r"[0-9a-f]{64}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,99}")
#: What the subjects of assignments begin with, beside the one without a credential.
_KINDS = ("token:", "group:", "oidc:", "certificate:")


def _empty(given: Any) -> Any:
    return {} if given is None else given


def _text_of_date(given: Any) -> Any:
    """YAML reads 2027-06-01 as a date."""
    return given.isoformat() if isinstance(given, date) else given


class TokenSection(Section):
    """One API token. The token itself stands in no file of a server."""

    sha256: str
    """SHA-256 of the token, as 'isochrone auth token' prints it."""
    expires: Annotated[str, BeforeValidator(_text_of_date)] = ""
    """A date, or a date with a time, after which it is refused; UTC unless it says otherwise."""
    groups: list[str] = Field(default=[])
    """Groups of its identity."""
    revoked: bool = False
    """It is refused at once."""


class RuleSection(Section):
    """Permissions that a role gives."""

    may: list[str]
    """Permissions; '*' is all of them."""
    models: list[str] = Field(default=["*"], min_length=1)
    """Patterns of the models that they are for."""
    priority: int = Field(default=0, ge=0)
    """The highest priority that requests may ask for: 1 is the highest; 0 sets no limit."""


class AssignmentSection(Section):
    """Roles of some callers."""

    to: list[str] = Field(min_length=1)
    """Callers: token:NAME, group:NAME, oidc:PROVIDER/NAME, group:PROVIDER/NAME, certificate:NAME; '*' stands for any
    characters."""
    roles: list[str] = Field(min_length=1)
    """Names of roles."""


class AccessSection(Section):
    """Who may do what."""

    tokens: Annotated[dict[str, TokenSection], BeforeValidator(_empty)] = Field(default={})
    """API tokens by the name of their caller."""
    roles: Annotated[dict[str, list[RuleSection]], BeforeValidator(_empty)] = Field(default={})
    """Roles beside caller, gateway, reader, operator and admin; or instead of them."""
    providers: Annotated[dict[str, dict[str, Any]], BeforeValidator(_empty)] = Field(default={})
    """OpenID providers by a name of your choice; their settings are those of docs/openid.md."""
    assign: list[AssignmentSection] = Field(default=[])
    """Which callers have which roles."""
    anonymous: list[str] = Field(default=[HEALTH])
    """Permissions of callers without a credential; all others have them too."""
    tenants: Annotated[dict[str, list[str]], BeforeValidator(_empty)] = Field(default={})
    """Callers that use quotas together, by the tenant's name; written as in assign. A caller belongs to the first
    tenant that names it."""


@dataclass(frozen=True)
class Access:
    """What an access file says."""

    policy: Policy
    #: Digest of the token → its record.
    tokens: Mapping[str, TokenRecord] = field(default_factory=dict)
    #: By their names in the file.
    providers: Mapping[str, Provider] = field(default_factory=dict)


def load_access(path: Path | str) -> Access:
    """Read an access file. Raises ``SettingsError`` with all its errors."""
    return parse_access(parse_document(read_text(path, "an access file"), str(path)))


def pending_access() -> Access:
    """In force until a fleet's rules have been read: nothing but health."""
    access = _access(AccessSection(), {})
    return replace(access, policy=replace(access.policy, is_pending=True))


def parse_access(document: Document) -> Access:
    as_mapping(document, "a mapping with tokens, roles and assign")
    try:
        section = AccessSection.model_validate(document.data)
    except ValidationError as error:
        raise settings_error(problems_of(error, AccessSection), document.where, document.lines) from None
    problems = list(_problems(section))
    providers: dict[str, Provider] = {}
    for name, settings in section.providers.items():
        try:
            providers[name] = provider_of(settings, name)
        except SettingsError as error:
            problems += [Problem(("providers", name, *each.path), each.expected, each.given) for each in error.problems]
        except ConfigError as error:
            problems.append(Problem(("providers", name, error.key), error.expected, error.given))
    if problems:
        raise settings_error(problems, document.where, document.lines)
    return _access(section, providers)


def _access(section: AccessSection, providers: Mapping[str, Provider]) -> Access:
    roles: dict[str, tuple[Rule, ...]] = {name: (Rule(frozenset(may)),) for name, may in BUILT_IN.items()}
    for name, rules in section.roles.items():
        roles[name] = tuple(Rule(_permissions(rule.may), tuple(rule.models), rule.priority) for rule in rules)
    roles[ANONYMOUS.name] = (Rule(_permissions(section.anonymous)),)
    everyone = Assignment(("*",), (ANONYMOUS.name,))
    assignments = tuple(Assignment(tuple(each.to), tuple(each.roles)) for each in section.assign)
    tokens = {
        token.sha256: TokenRecord(
            f"token:{name}", token.sha256, moment(token.expires), frozenset(token.groups), token.revoked
        )
        for name, token in section.tokens.items()
    }
    tenants = tuple(Tenant(name, tuple(each)) for name, each in section.tenants.items())
    return Access(Policy(roles, (everyone, *assignments), tenants), tokens, providers)


def _permissions(names: list[str]) -> frozenset[str]:
    return frozenset(PERMISSIONS) if "*" in names else frozenset(names)


def moment(text: str) -> float | None:
    """Seconds since 1970 of a date, whose whole day counts, or of a time; None: "". Raises ``ValueError``."""
    if not text:
        return None
    if len(text) <= len("2027-06-01"):
        return datetime.combine(date.fromisoformat(text), time.max, UTC).timestamp()
    found = datetime.fromisoformat(text)
    return (found if found.tzinfo is not None else found.replace(tzinfo=UTC)).timestamp()


def _problems(section: AccessSection) -> Iterator[Problem]:
    """Errors that one key's type cannot express."""
    first: dict[str, str] = {}
    for name, token in section.tokens.items():
        at: KeyPath = ("tokens", name)
        if not _NAME.fullmatch(name):
            yield Problem(at, "a name of letters, digits and . _ @ -", repr(name))
        if not _DIGEST.fullmatch(token.sha256):
            yield Problem((*at, "sha256"), "64 hexadecimal digits; 'isochrone auth token' makes them", "something else")
        elif token.sha256 in first:
            yield Problem((*at, "sha256"), "a token of its own", f"that of '{first[token.sha256]}'")
        first.setdefault(token.sha256, name)
        for place, group in enumerate(token.groups):
            if not _NAME.fullmatch(group):
                yield Problem((*at, "groups", place), "a name of letters, digits and . _ @ -", repr(group))
        try:
            moment(token.expires)
        except ValueError:
            yield Problem((*at, "expires"), "a date as in 2027-06-01", repr(token.expires))
    for name in section.providers:
        if not _NAME.fullmatch(name):
            yield Problem(("providers", name), "a name of letters, digits and . _ @ -", repr(name))
    for role, rules in section.roles.items():
        if role == ANONYMOUS.name:
            yield Problem(("roles", role), "another name: 'anonymous' has a key of its own", repr(role))
        for number, rule in enumerate(rules):
            yield from _unknown_permissions(rule.may, ("roles", role, number, "may"))
    yield from _unknown_permissions(section.anonymous, ("anonymous",))
    known = [*BUILT_IN, *(role for role in section.roles if role not in BUILT_IN)]
    for number, assignment in enumerate(section.assign):
        for place, subject in enumerate(assignment.to):
            yield from _subject_problems(subject, section, ("assign", number, "to", place))
        for place, role in enumerate(assignment.roles):
            if role not in known:
                yield Problem(("assign", number, "roles", place), suggestion(role, known, "role"), repr(role))
    for name, subjects in section.tenants.items():
        if not _NAME.fullmatch(name):
            yield Problem(("tenants", name), "a name of letters, digits and . _ @ -", repr(name))
        for place, subject in enumerate(subjects):
            yield from _subject_problems(subject, section, ("tenants", name, place))


def _unknown_permissions(names: list[str], at: KeyPath) -> Iterator[Problem]:
    for place, name in enumerate(names):
        if name != "*" and name not in PERMISSIONS:
            yield Problem((*at, place), choice(name, ["*", *PERMISSIONS]), repr(name))


def _subject_problems(subject: str, section: AccessSection, at: KeyPath) -> Iterator[Problem]:
    if not subject.startswith(_KINDS):
        yield Problem(at, f"a caller that begins with {', '.join(_KINDS[:-1])} or {_KINDS[-1]}", repr(subject))
    elif subject.startswith("token:") and "*" not in subject and subject.removeprefix("token:") not in section.tokens:
        known = [f"token:{name}" for name in section.tokens]
        yield Problem(at, suggestion(subject, known, "token") if known else "a token of this file", repr(subject))
