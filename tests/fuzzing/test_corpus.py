"""Every target over its seeds, its corpus, and plain mutations of both: what fuzzing found once is found again."""

from __future__ import annotations

import itertools

import pytest

from fuzz.findings import PREFIX
from fuzz.mutation import mutations
from fuzz.target import CORPUS, MAX_BYTES, Target
from fuzz.targets import TARGETS

#: For each target: few, since most of these run for milliseconds, and the fuzzer itself does millions.
_MUTATIONS = 300

each_target = pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)


@each_target
def test_the_promise_holds_for_the_corpus(target: Target) -> None:
    for data in target.inputs():
        target.check(data)


@each_target
def test_the_promise_holds_for_mutations(target: Target) -> None:
    inputs = list(target.inputs())
    for data in itertools.islice(mutations(inputs, seed=7), _MUTATIONS):
        target.check(data)


def test_the_corpus_is_small_and_belongs_to_targets() -> None:
    names = {target.name for target in TARGETS}
    assert len(names) == len(TARGETS)
    files = [path for path in CORPUS.rglob("*") if path.is_file()]
    assert {path.parent.name for path in files} <= names
    assert all(path.stat().st_size <= MAX_BYTES for path in files)
    assert sum(path.stat().st_size for path in files) < 300_000
    assert [path for path in files if path.name.startswith(PREFIX)], "the inputs that once broke a promise"


def test_mutations_of_one_seed_are_the_same() -> None:
    first, second = (list(itertools.islice(mutations([b"abc", b"defg"], 3), 50)) for _ in range(2))
    assert first == second
    assert len(set(first)) > 25
