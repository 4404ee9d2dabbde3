"""The policy: which identity may do what, and why. Pure; the same object decides in every process."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import translate
from functools import cached_property
from typing import NamedTuple

from isochrone.secure.access.identity import ANONYMOUS, Identity
from isochrone.secure.access.subjects import SubjectIndex


@dataclass(frozen=True)
class Rule:
    """Some permissions, for some models, up to a priority."""

    may: frozenset[str]
    #: Patterns of names: ``vision-*``.
    models: tuple[str, ...] = ("*",)
    #: The highest priority that requests may ask for: 1 is the highest of all; 0: every one.
    priority: int = 0

    @cached_property
    def _names(self) -> re.Pattern[str]:
        return re.compile("|".join(translate(pattern) for pattern in self.models))

    def covers(self, model: str) -> bool:
        """A call that names no model concerns all of them."""
        return "*" in self.models or (bool(model) and self._names.match(model) is not None)


@dataclass(frozen=True, slots=True)
class Assignment:
    """Roles for subjects: names of identities, or patterns of them."""

    to: tuple[str, ...]
    roles: tuple[str, ...]


class Decision(NamedTuple):
    """``reason`` says which role allows it, or what is missing."""

    allowed: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Tenant:
    """Identities that use quotas together, given like the subjects of an assignment."""

    name: str
    identities: tuple[str, ...]


@dataclass(frozen=True)
class Policy:
    """Denies what no role allows."""

    roles: Mapping[str, tuple[Rule, ...]] = field(default_factory=dict)
    assignments: tuple[Assignment, ...] = ()
    tenants: tuple[Tenant, ...] = ()
    #: The fleet's rules are not known yet: only what needs no right is allowed.
    is_pending: bool = False

    @cached_property
    def _assigned_subjects(self) -> SubjectIndex:
        return SubjectIndex(assignment.to for assignment in self.assignments)

    @cached_property
    def _tenant_subjects(self) -> SubjectIndex:
        return SubjectIndex(tenant.identities for tenant in self.tenants)

    def tenant_of(self, identity: Identity) -> str:
        """The first tenant of the file that an identity belongs to; "": none."""
        found = self._tenant_subjects.matching(identity.subjects)
        return self.tenants[found[0]].name if found else ""

    def account_of(self, identity: Identity) -> str:
        """Whose quotas an identity uses: ``tenant:plant-a``, or its own name."""
        tenant = self.tenant_of(identity)
        return f"tenant:{tenant}" if tenant else identity.name

    def roles_of(self, identity: Identity) -> Iterator[str]:
        """In the order of the file, each once."""
        found: dict[str, None] = {}
        for number in self._assigned_subjects.matching(identity.subjects):
            found.update(dict.fromkeys(self.assignments[number].roles))
        yield from found

    def allows_some(self, identity: Identity, permission: str) -> bool:
        """Whether it is allowed for one model at least."""
        return any(permission in rule.may for role in self.roles_of(identity) for rule in self.roles[role])

    def limits_priority(self, identity: Identity) -> bool:
        """Whether a rule of this identity has a priority."""
        return any(rule.priority for role in self.roles_of(identity) for rule in self.roles[role])

    def decide(self, identity: Identity, permission: str, model: str = "", priority: int = 0) -> Decision:
        """``priority``: the one that a request asks for; 0: the model's default."""
        roles = list(self.roles_of(identity))
        about = f" of model '{model}'" if model else ""
        refused = ""
        for role in roles:
            for rule in self.roles[role]:
                if permission not in rule.may or not rule.covers(model):
                    continue
                if not priority or not rule.priority or priority >= rule.priority:
                    return Decision(True, f"role '{role}' of {identity.name} allows {permission}{about}")
                refused = f"role '{role}' of {identity.name} allows {permission}{about} up to priority {rule.priority}"
        if refused:
            return Decision(False, f"{refused}, and the request asks for {priority}")
        roles = [role for role in roles if role != ANONYMOUS.name]
        given = ", ".join(f"'{role}'" for role in roles)
        if not roles:
            return Decision(False, f"{identity.name} has no role, and {permission}{about} needs one")
        has = f"{identity.name} has {'role' if len(roles) == 1 else 'roles'} {given}"
        return Decision(False, f"{has}, which does not allow {permission}{about}")
