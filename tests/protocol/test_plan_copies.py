"""A copy of a plan says all that the plan says."""

from __future__ import annotations

import pytest

from isochrone.protocol.grpc.plan import GrpcPlan
from isochrone.protocol.messages import Plan
from isochrone.protocol.rest.plan import RestPlan

#: Fields that a plan computes from others.
_DERIVED = {"key"}


@pytest.mark.interpreted
@pytest.mark.parametrize("kind", [Plan, RestPlan, GrpcPlan])
def test_a_copy_has_every_field(kind: type[Plan]) -> None:
    plan = kind("m", "1", (("x", "FP32", (1,)),), ("y",))
    fields = {name for each in kind.__mro__ for name in getattr(each, "__slots__", ())} - _DERIVED
    values = {name: _value_like(getattr(plan, name, None), name) for name in sorted(fields)}
    for name, value in values.items():
        setattr(plan, name, value)
    other = plan.copy()
    assert type(other) is kind
    assert other is not plan
    assert {name: getattr(other, name) for name in fields} == values


def _value_like(default: object, name: str) -> object:
    """Another value of the type that the field has."""
    if name in ("is_plain", "binary_default") or isinstance(default, bool):
        return True
    if isinstance(default, int):
        return 7
    if isinstance(default, str):
        return name
    if name in ("inputs", "outputs", "bools", "regions"):
        return (name,)
    if name == "sources":
        return [name]
    return {name: name}
