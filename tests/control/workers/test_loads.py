"""What a worker is told next: what is served before what stands by, stages before ensembles, nobody behind one that
hangs."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from isochrone.control.workers.loads import AT_ONCE, Call, Loads

Sets = Mapping[str, frozenset[str]]


def sets(**models: str) -> dict[str, frozenset[str]]:
    """``m="12"``: versions 1 and 2 of m."""
    return {model: frozenset(versions) for model, versions in models.items()}


def call(model: str, versions: str = "") -> Call:
    return Call(model, frozenset(versions))


def loads(models: Sets, order: str = "", spare: Sets | None = None, stages: Sets | None = None) -> Loads:
    made = Loads()
    made.set_desired(models, list(order) or sorted(models), spare or {}, {} if stages is None else stages)
    return made


def test_nothing_is_touched_before_anything_was_said() -> None:
    assert Loads().due(sets(m="1"), (), 0.0) == []


def test_what_is_committed_comes_first_and_what_stands_by_after_it() -> None:
    made = loads(sets(m="12"), spare=sets(m="1"))
    assert made.due({}, (), 0.0) == [call("m", "2")]
    assert made.due(sets(m="2"), (), 0.0) == [call("m", "12")]
    assert made.due(sets(m="12"), (), 0.0) == []
    # What stands by already is not taken away to load what is committed.
    assert made.due(sets(m="1"), (), 0.0) == [call("m", "12")]


def test_a_refused_version_that_stands_by_blocks_nothing() -> None:
    made = loads(sets(m="12"), spare=sets(m="1"))
    made.refused(call("m", "12"), sets(m="2"), "no such file", 0.0)
    assert made.failures["m"].versions == {"1"}
    assert made.due(sets(m="2"), (), 0.5) == []
    assert not made.is_busy(sets(m="2"))
    assert made.due({}, (), 0.5) == [call("m", "2")], "what is committed does not wait for that pause"
    assert made.due(sets(m="23"), (), 0.5) == [call("m", "2")], "nor does what is to go"
    assert made.due(sets(m="2"), (), 1.0) == [call("m", "12")]


def test_a_load_of_what_is_not_wanted_any_more_is_given_up_by_a_call_with_what_is_wanted() -> None:
    made = loads(sets(m="1"))
    assert made.due(sets(m="1"), (), 0.0, sets(m="8")) == [call("m", "1")]
    assert made.due(sets(m="1"), (), 0.0, sets(n="8")) == [call("n")]
    assert made.due(sets(m="1"), ("m",), 0.0, sets(m="8")) == [], "it is under way"
    assert made.due({}, (), 0.0, sets(m="1")) == [call("m", "1")], "its own load"
    made.set_desired(sets(m="19"), ["m"], {}, {})
    assert made.due(sets(m="1"), (), 0.0, sets(m="8")) == [call("m", "19")]
    assert Loads().due({}, (), 0.0, sets(m="8")) == []


def test_pauses_grow_and_end_with_another_wish() -> None:
    made = loads(sets(m="2"))
    now = 0.0
    waited = []
    for _ in range(8):
        made.refused(call("m", "2"), {}, "broken", now)
        pause = next(pause for pause in range(1, 100) if made.due({}, (), now + pause))
        waited.append(pause)
        now += pause
    assert waited == [1, 2, 4, 8, 16, 30, 30, 30]
    made.refused(call("m", "2"), {}, "broken", now)
    assert made.set_desired(sets(m="2", n="1"), ["m", "n"], {}, {}) == {"n"}
    assert made.due({}, (), now) == [call("n", "1")]
    # A requested rollback has the same versions, but another one is spare.
    assert made.set_desired(sets(m="2", n="1"), ["m", "n"], sets(m="2"), {}) == {"m"}
    assert "m" not in made.failures
    assert call("m", "2") in made.due({}, (), now)


def test_an_answer_that_does_not_come_is_asked_for_again_soon() -> None:
    made = loads(sets(m="2"))
    made.unanswered(call("m", "2"), 10.0)
    assert made.due({}, (), 10.0) == []
    assert made.is_busy({})
    assert made.due({}, (), 10.2) == [call("m", "2")]
    assert made.failures == {}


def test_an_ensemble_waits_for_its_stages_and_nobody_else_does() -> None:
    models = sets(a="1", b="1", e="1", z="1")
    made = loads(models, "abez", stages=sets(e="ab"))
    assert made.due({}, (), 0.0) == [call("a", "1"), call("b", "1"), call("z", "1")]
    assert made.due(sets(b="1", z="1"), ("a",), 0.0) == []
    assert made.due(sets(a="1", b="1", z="1"), (), 0.0) == [call("e", "1")]


def test_an_ensemble_whose_stage_was_refused_is_told_why() -> None:
    made = loads(sets(a="1", e="1"), "ae", stages=sets(e="a"))
    made.refused(call("a", "1"), {}, "broken", 0.0)
    assert made.due({}, (), 0.1) == [call("e", "1")]


def test_an_ensemble_does_not_wait_for_stages_that_stand_by() -> None:
    made = loads(sets(a="12", e="1"), "ae", spare=sets(a="1"), stages=sets(e="a"))
    assert made.due(sets(a="2"), ("a",), 0.0) == [call("e", "1")]


def test_stages_that_run_each_other_do_not_wait_for_ever() -> None:
    assert loads(sets(a="1", b="1"), "ab", stages=sets(a="b", b="a")).due({}, (), 0.0) == [call("a", "1")]


def test_where_stages_are_not_told_the_order_is_kept() -> None:
    made = Loads()
    made.set_desired(sets(a="1", b="1"), ["a", "b"], {}, None)
    assert made.due({}, (), 0.0) == [call("a", "1")]
    assert made.due(sets(a="1"), (), 0.0) == [call("b", "1")]


def test_only_a_few_at_once_and_loads_before_unloads() -> None:
    models = {name: frozenset("1") for name in "bcdefg"}
    made = loads(models)
    assert made.due(sets(a="1"), (), 0.0) == [call(name, "1") for name in "bcdefg"][:AT_ONCE]
    assert made.due(sets(a="1"), ("b", "c", "d"), 0.0) == [call("e", "1")]
    there = {**models, "a": frozenset("1")}
    assert made.due(there, (), 0.0) == [call("a")]


_SETS = st.dictionaries(st.sampled_from("abc"), st.frozensets(st.sampled_from("123"), min_size=1), max_size=3)


@given(_SETS, _SETS, _SETS, st.sets(st.sampled_from("123")))
def test_it_ends_with_what_is_wanted_except_for_what_is_broken(
    models: dict[str, frozenset[str]],
    spare: dict[str, frozenset[str]],
    present: dict[str, frozenset[str]],
    broken: set[str],
) -> None:
    """Only spare versions are broken: everything else is served in the end, and no call unloads a desired version."""
    spare = {name: versions & models.get(name, frozenset()) for name, versions in spare.items()}
    models = {
        name: frozenset(v for v in versions if v not in broken or v in spare.get(name, ()))
        for name, versions in models.items()
    }
    models = {name: versions for name, versions in models.items() if versions}
    made = loads(models, "abc", spare)
    there = dict(present)
    for _ in range(30):
        for each in made.due(there, (), 0.0):
            had = there.get(each.model, frozenset())
            assert had & models.get(each.model, frozenset()) <= each.versions
            if (each.versions - had) & broken:
                made.refused(each, there, "broken", 0.0)
            else:
                there[each.model] = each.versions
                made.succeeded(each)
                there = {name: versions for name, versions in there.items() if versions}
    for name in "abc":
        desired = models.get(name, frozenset())
        found = there.get(name, frozenset())
        essential = desired - spare.get(name, frozenset())
        assert essential <= found
        assert found <= desired or not essential
        if not (desired - present.get(name, frozenset())) & broken:
            assert found == desired
