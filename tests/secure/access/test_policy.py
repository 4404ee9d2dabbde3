"""The policy denies what no role allows, and says why."""

from __future__ import annotations

from fnmatch import fnmatchcase

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isochrone.secure.access.identity import ANONYMOUS, Identity
from isochrone.secure.access.permissions import FLEET_READ, INFERENCE, METADATA, PERMISSIONS
from isochrone.secure.access.policy import Assignment, Policy, Rule

NAMES = ("vision-large", "vision-small", "audio", "")
PATTERNS = ("*", "vision-*", "audio", "*-small", "vision-l?rge")


def test_without_roles_nothing_is_allowed() -> None:
    for permission in PERMISSIONS:
        allowed, reason = Policy().decide(Identity("token:a"), permission, "m")
        assert not allowed
        assert "token:a has no role" in reason


rules = st.builds(
    Rule,
    st.frozensets(st.sampled_from((INFERENCE, METADATA, FLEET_READ))),
    st.lists(st.sampled_from(PATTERNS), min_size=1, max_size=3).map(tuple),
    st.integers(0, 3),
)


@given(
    st.dictionaries(st.sampled_from("abc"), st.lists(rules, max_size=3).map(tuple), min_size=1),
    st.data(),
    st.sampled_from((INFERENCE, METADATA, FLEET_READ)),
    st.sampled_from(NAMES),
    st.integers(0, 4),
)
def test_a_decision_is_what_one_rule_of_one_role_says(
    roles: dict[str, tuple[Rule, ...]], data: st.DataObject, permission: str, model: str, priority: int
) -> None:
    subjects = ("token:a", "token:b", "group:g", "token:*", "*")
    names = st.lists(st.sampled_from(sorted(roles)), min_size=1).map(tuple)
    to = st.lists(st.sampled_from(subjects), min_size=1).map(tuple)
    assignments = data.draw(st.lists(st.builds(Assignment, to, names), max_size=4).map(tuple))
    identity = data.draw(st.sampled_from((Identity("token:a"), Identity("oidc:x", frozenset("g")), ANONYMOUS)))
    policy = Policy(roles, assignments)

    held = {
        role
        for each in assignments
        for role in each.roles
        if any(fnmatchcase(subject, pattern) for pattern in each.to for subject in identity.subjects)
    }
    expected = any(
        permission in rule.may
        and ("*" in rule.models or (model and any(fnmatchcase(model, pattern) for pattern in rule.models)))
        and (not priority or not rule.priority or priority >= rule.priority)
        for role in held
        for rule in roles[role]
    )
    assert policy.decide(identity, permission, model, priority).allowed == expected
    assert set(policy.roles_of(identity)) == held
    if expected:
        assert policy.allows_some(identity, permission)


@pytest.mark.parametrize(
    ("model", "priority", "words"),
    [
        ("vision-a", 0, "role 'vision' of token:a allows inference of model 'vision-a'"),
        ("vision-a", 1, "up to priority 2, and the request asks for 1"),
        ("audio", 0, "token:a has role 'vision', which does not allow inference of model 'audio'"),
        ("", 0, "does not allow inference"),
    ],
)
def test_reasons(model: str, priority: int, words: str) -> None:
    policy = Policy(
        {"vision": (Rule(frozenset((INFERENCE,)), ("vision-*",), 2),)}, (Assignment(("token:a",), ("vision",)),)
    )
    assert words in policy.decide(Identity("token:a"), INFERENCE, model, priority).reason


@pytest.mark.parametrize("subject", ["certificate:spiffe://plant/gateway[1]", "group:a.b", "oidc:x?y"])
def test_only_a_star_is_special_in_subjects(subject: str) -> None:
    policy = Policy({"r": (Rule(frozenset((INFERENCE,))),)}, (Assignment((subject,), ("r",)),))
    assert policy.decide(Identity(subject), INFERENCE).allowed
    for other in (subject.replace("[1]", "1").replace(".", "x").replace("?", "z"), f"{subject}\n", f"x{subject}"):
        if other != subject:
            assert not policy.decide(Identity(other), INFERENCE).allowed, other


def test_whether_a_priority_limits_an_identity() -> None:
    roles = {"free": (Rule(frozenset((INFERENCE,))),), "slow": (Rule(frozenset((INFERENCE,)), priority=2),)}
    policy = Policy(roles, (Assignment(("token:a", "token:b"), ("free",)), Assignment(("token:b",), ("slow",))))
    assert not policy.limits_priority(Identity("token:a"))
    assert policy.limits_priority(Identity("token:b"))
    assert not policy.limits_priority(ANONYMOUS)
