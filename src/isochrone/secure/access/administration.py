"""Whether access rules leave anybody who may administer a fleet. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from isochrone.secure.access.document import Access
from isochrone.secure.access.identity import ANONYMOUS, Identity
from isochrone.secure.access.permissions import FLEET_ADMIN


def has_administrator(access: Access, now: float) -> bool:
    """Whether a token that is valid now, or somebody whom a provider may name, is allowed to apply a fleet.yaml.
    Certificates do not count: the control API does not accept them. ``now``: seconds since 1970."""
    policy = access.policy
    if any(policy.decide(each, FLEET_ADMIN).allowed for each in (ANONYMOUS, *_valid_tokens(access, now))):
        return True
    admins = [
        name
        for name, rules in policy.roles.items()
        if any(FLEET_ADMIN in rule.may and rule.covers("") for rule in rules)
    ]
    return any(
        _may_be_of_provider(subject, provider)
        for assignment in policy.assignments
        if not set(assignment.roles).isdisjoint(admins)
        for subject in assignment.to
        for provider in access.providers
    )


def _valid_tokens(access: Access, now: float) -> Iterator[Identity]:
    for record in access.tokens.values():
        if not record.refusal(now):
            yield Identity(record.name, record.groups)


def _may_be_of_provider(subject: str, provider: str) -> bool:
    """Whether a subject of an assignment, or its pattern, can name a person or a group of a provider."""
    literal, star, _ = subject.partition("*")
    for beginning in (f"oidc:{provider}/", f"group:{provider}/"):
        if literal.startswith(beginning) or (star and beginning.startswith(literal)):
            return True
    return False
