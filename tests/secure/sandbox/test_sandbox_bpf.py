"""Filters do what their rules say, for every call and argument. ``bpf_machine`` runs them as the kernel does."""

from __future__ import annotations

import errno
import struct

import pytest
from bpf_machine import denied_with, run
from hypothesis import given
from hypothesis import strategies as st

from isochrone.secure.sandbox.system_calls.bpf import Compare, Deny, assemble, encoded

_ARCHITECTURE = 0xC000003E
_WORDS = st.sampled_from((0, 1, 2, 0x10000, 0xFFFFFFFF)) | st.integers(0, 2**32 - 1)
_COMPARES = st.builds(
    Compare,
    argument=st.integers(0, 5),
    value=_WORDS,
    equal=st.booleans(),
    mask=st.sampled_from((0xFFFFFFFF, 0xF, 0x10000)),
    upper=st.booleans(),
)
_RULES = st.lists(
    st.builds(
        Deny,
        number=st.integers(0, 20),
        where=st.lists(st.lists(_COMPARES, min_size=1, max_size=4).map(tuple), max_size=4).map(tuple),
        error=st.sampled_from((0, errno.EPERM, errno.ENOSYS)),
    ),
    max_size=30,
    unique_by=lambda rule: rule.number,
)


def _holds(compare: Compare, arguments: list[int]) -> bool:
    half = arguments[compare.argument] >> 32 if compare.upper else arguments[compare.argument] & 0xFFFFFFFF
    return ((half & compare.mask) == compare.value) == compare.equal


@given(_RULES, st.integers(0, 30), st.lists(st.integers(0, 2**64 - 1) | _WORDS, min_size=6, max_size=6))
def test_a_call_is_denied_exactly_where_a_rule_says_so(rules: list[Deny], number: int, arguments: list[int]) -> None:
    expected = None
    for rule in rules:
        if rule.number == number and (
            not rule.where or any(all(_holds(each, arguments) for each in clause) for clause in rule.where)
        ):
            expected = rule.error
    if number > 25:
        expected = errno.ENOSYS
    assert denied_with(run(assemble(_ARCHITECTURE, 25, rules), number, _ARCHITECTURE, arguments)) == expected


@given(_RULES, st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1))
def test_nothing_of_another_architecture_passes(rules: list[Deny], number: int, architecture: int) -> None:
    if architecture != _ARCHITECTURE:
        program = assemble(_ARCHITECTURE, 25, rules)
        assert denied_with(run(program, number, architecture)) == errno.ENOSYS


@pytest.mark.parametrize("number", [26, 0x40000000, 0x40000001, 0xFFFFFFFF])
def test_numbers_that_nobody_has_judged_do_not_pass(number: int) -> None:
    """Those of x32 among them, which are calls of x86_64 with a bit added."""
    assert denied_with(run(assemble(_ARCHITECTURE, 25, []), number, _ARCHITECTURE)) == errno.ENOSYS


def test_the_bytes_are_those_of_the_kernels_struct() -> None:
    program = assemble(_ARCHITECTURE, 25, [Deny(3)])
    data = encoded(program)
    assert len(data) == 8 * len(program)
    assert list(struct.iter_unpack("=HBBI", data)) == program


def test_a_clause_that_is_too_long_for_a_jump_is_no_wrong_filter() -> None:
    clause = tuple(Compare(0, value, equal=False) for value in range(200))
    with pytest.raises(ValueError, match="8 bits"):
        assemble(_ARCHITECTURE, 25, [Deny(3, (clause,))])
