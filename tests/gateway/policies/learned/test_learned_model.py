"""The learned policy's weights: read, written, scored as documented, refined in small steps."""

from __future__ import annotations

from math import log
from operator import mul
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from learned_fleet import START, weights
from policy_queues import MS, fleet

from isochrone.errors import ConfigError
from isochrone.gateway.policies.learned.features import KEPT, NAMES, View, figures, seen
from isochrone.gateway.policies.learned.model import SHIPPED, UNKNOWN, Lot, Model, read, write
from isochrone.gateway.replicas import LoadReport


def test_the_shipped_weights_are_inside_the_package_and_name_their_training() -> None:
    shipped = read(SHIPPED)
    assert SHIPPED.parent.name == "learned"
    assert str(shipped.trained["command"]).startswith("isochrone simulate train --seed")
    assert shipped.weights["outlook"] > 0
    assert shipped.weights["load"] > 0


def test_written_weights_are_read_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "weights.json"
    write(weights(load=0.25, outlook=0.5), path)
    assert read(path) == weights(load=0.25, outlook=0.5)
    first = path.read_bytes()
    write(read(path), path)
    assert path.read_bytes() == first


@pytest.mark.parametrize(
    ("change", "key"),
    [
        (lambda found: found["weights"].pop("load"), "weights"),
        (lambda found: found["weights"].update(load=-0.1), "weights.load"),
        (lambda found: found["ranges"].pop("peak"), "ranges"),
        (lambda found: found.update(margin=-1), "margin"),
        (lambda found: found.update(colour="red"), "file"),
    ],
)
def test_errors_of_a_weights_file(tmp_path: Path, change: object, key: str) -> None:
    found = msgspec.to_builtins(weights())
    change(found)  # type: ignore[operator]
    path = tmp_path / "weights.json"
    path.write_bytes(msgspec.json.encode(found))
    with pytest.raises(ConfigError) as caught:
        read(path)
    assert caught.value.key == key


FIGURE = st.floats(0, 2)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(FIGURE, min_size=len(NAMES), max_size=len(NAMES)),
    st.tuples(st.integers(0, 6), st.integers(0, 20), st.integers(0, 9), st.integers(0, 150)),
)
def test_a_refresh_computes_the_score_of_the_features(values: list[float], state: tuple[int, int, int, int]) -> None:
    """The quick way and the documented one agree, whatever the weights."""
    in_flight, wait_ms, load, age_ms = state
    wide = weights(**dict(zip(NAMES, values, strict=True)))
    wide = msgspec.structs.replace(wide, ranges=dict.fromkeys(NAMES, (-1e9, 1e9)))
    model, view, replica = Model(wide), View(), fleet(1)[0]
    replica.ended(replica.sent(), 3 * MS, False, START)
    for _ in range(in_flight):
        replica.sent()
    replica.endpoint.free_memory = 1 << 30
    replica.reported(LoadReport(load, 0, wait_ms * MS, 2 * MS), START)
    now = START + age_ms * MS
    model.refresh(view, replica, now)
    assert view.base == pytest.approx(sum(map(mul, values[: len(KEPT)], figures(seen(replica, view, now), 0.0, 0.0))))


def test_time_that_passes_shortens_the_outlook() -> None:
    model, view, replica = Model(weights()), View(), fleet(1)[0]
    replica.ended(replica.sent(), 2 * MS, False, START)
    replica.reported(LoadReport(3, 2, 4 * MS, 2 * MS), START)
    replica.sent()
    model.refresh(view, replica, START)
    # Four ms of waiting, one request sent since, and its own run.
    assert view.outlook(START) == pytest.approx(log(8 * MS))
    assert view.outlook(START + 3 * MS) == pytest.approx(log(5 * MS))
    assert view.outlook(START + 90 * MS) == pytest.approx(log(2 * MS))


def test_a_replica_without_answers_or_with_failures_has_no_score() -> None:
    model, view, replica = Model(weights()), View(), fleet(1)[0]
    model.refresh(view, replica, START)
    assert view.base == UNKNOWN
    replica.ended(replica.sent(), 2 * MS, False, START)
    replica.reported(LoadReport(0, 0, 0, 2 * MS), START)
    model.refresh(view, replica, START)
    assert view.base != UNKNOWN
    narrow = msgspec.structs.replace(weights(), ranges={**weights().ranges, "errors": (-0.05, 0.05)})
    replica.ended(replica.sent(), 2 * MS, True, START)
    model = Model(narrow)
    model.refresh(view, replica, START)
    assert view.base == UNKNOWN


def test_refinement_goes_the_right_way_and_only_where_training_went() -> None:
    model = Model(weights(load=0.5, outlook=0.5), step=0.05, drift=0.5)
    up, down = [0.0] * len(NAMES), [0.0] * len(NAMES)
    for name in ("load", "peak"):
        up[NAMES.index(name)], down[NAMES.index(name)] = 1.0, -1.0
    for _ in range(200):
        # Load costs more than the model believes.
        model.refine(Lot(up, up, 1 << 62), 4 * MS, START)
        model.refine(Lot(down, down, 1 << 62), 1 * MS, START)
    refined = dict(zip(NAMES, model.weights, strict=True))
    assert 0.5 < refined["load"] <= 0.75
    assert refined["peak"] == 0.0


def test_a_missed_deadline_costs_more() -> None:
    met, missed = (Model(weights(load=0.5), step=0.05, drift=1.0) for _ in range(2))
    figures = [1.0 if name == "load" else 0.0 for name in NAMES]
    for model, deadline in ((met, 1 << 62), (missed, START - 1)):
        model.refine(Lot([0.0] * len(NAMES), figures, 1 << 62), 2 * MS, START)
        model.refine(Lot(figures, figures, deadline), 2 * MS, START)
    assert missed.weights[NAMES.index("load")] > met.weights[NAMES.index("load")]
