"""Training of the learned policy: it finds known weights, is deterministic by seed, matches Prequal on held-out kinds,
and is switched off when it is deceived.
"""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from lying_workers import lying_fleet
from typer.testing import CliRunner

from isochrone.cli.main import app
from isochrone.errors import ConfigError
from isochrone.gateway.policies.base import Policy
from isochrone.gateway.policies.learned.features import NAMES
from isochrone.gateway.policies.learned.model import SHIPPED, Lot, Weights, read
from isochrone.gateway.policies.learned.policy import Learned
from isochrone.gateway.policies.prequal.policy import Prequal
from isochrone.simulate.training import course, evaluation
from isochrone.simulate.training.episodes import UNTRAINED, Lessons, Recorder, Trainee, study
from isochrone.simulate.training.scenarios import HELD_OUT, TRAINING, bursts, equal, mixed, swell, trouble

pytestmark = pytest.mark.long


def lessons_of(weights: dict[str, float], noise: float, seed: int = 1, count: int = 4000) -> Lessons:
    """Lots whose cost is known: the weights, a state that is the same for all candidates, and noise."""
    random = Random(seed)
    recorder = Recorder(UNTRAINED)
    for _ in range(count):
        centred = [random.gauss(0, 1) for _ in NAMES]
        means = [random.gauss(0, 2) for _ in NAMES]
        effect = sum(weights.get(name, 0.0) * value for name, value in zip(NAMES, centred, strict=True))
        cost = 14 + effect + sum(means) / 5 + random.gauss(0, noise)
        recorder.centred.append(centred)
        recorder.means.append(means)
        recorder.costs.append(cost)
        recorder.typicals.append(14.0)
    lessons = Lessons()
    lessons.add(recorder)
    return lessons


def test_the_fit_finds_the_weights() -> None:
    found = lessons_of({"outlook": 0.5, "load": 0.2}, noise=0.5).fit(0.0)
    assert found["outlook"] == pytest.approx(0.5, abs=0.05)
    assert found["load"] == pytest.approx(0.2, abs=0.05)
    assert all(abs(weight) < 0.05 for name, weight in found.items() if name not in ("outlook", "load"))


def test_no_weight_is_negative_whatever_the_lessons_say() -> None:
    found = lessons_of({"outlook": 0.5, "load": -0.4}, noise=0.1).fit(0.01)
    assert found["load"] == 0.0
    assert min(found.values()) >= 0.0


def test_a_figure_that_never_differs_teaches_nothing() -> None:
    recorder = Recorder(UNTRAINED)
    random = Random(1)
    for _ in range(500):
        figures = [random.gauss(0, 1) if name != "memory" else 0.0 for name in NAMES]
        recorder.refine(Lot(figures, [0.0] * len(NAMES), 1 << 62), 1_000_000, 0)
    lessons = Lessons()
    lessons.add(recorder)
    assert lessons.fit(0.01)["memory"] == 0.0


def test_an_episode_teaches_only_from_lots() -> None:
    lessons = Lessons()
    study(mixed(Random(1), 2000), UNTRAINED, 0.5, 5, lessons)
    assert 400 < lessons.samples < 1200
    found = lessons.fit(0.02)
    assert found["outlook"] + found["speed"] + found["load"] + found["in_flight"] > 0.1
    ranges = lessons.ranges(0.4)
    assert all(low <= high for low, high in ranges.values())


def test_training_is_the_same_by_seed() -> None:
    reported: list[tuple[int, int]] = []

    def progress(what: str, done: int, whole: int) -> None:
        reported.append((done, whole))

    first = course.train(3, 0, progress, 1000, (equal, mixed))
    assert first == course.train(3, 0, None, 1000, (equal, mixed))
    assert first.weights != course.train(4, 0, None, 1000, (equal, mixed)).weights
    assert all(done < whole for done, whole in reported)
    assert [done for done, _ in reported] == sorted(done for done, _ in reported)
    assert first.weights.margin in first.margins
    assert msgspec.json.decode(msgspec.json.encode(first.weights), type=Weights) == first.weights


def test_episodes_too_short_to_learn_from_are_told() -> None:
    with pytest.raises(ConfigError, match="long enough"):
        course.train(1, 0, None, 50, (equal,))


def test_what_it_is_tried_on_is_nothing_it_was_trained_on() -> None:
    trained = {kind(Random(1), 1000).name for kind in TRAINING}
    tried = {kind(Random(1), 1000).name for kind in HELD_OUT}
    assert not trained & tried
    for kind in (*TRAINING, *HELD_OUT):
        assert kind(Random(7), 1000) == kind(Random(7), 1000)


@pytest.mark.parametrize(("kind", "requests"), [(swell, 6000), (trouble, 20_000)])
def test_the_shipped_weights_match_prequal_on_kinds_they_never_saw(kind: Any, requests: int) -> None:
    compared = evaluation.compare(kind, True, read(SHIPPED), seeds=2, requests=requests)
    assert compared.ratio < 1.05
    assert compared.learned_missed <= compared.prequal_missed + 0.002
    assert compared.switched_off == 0


def test_the_shipped_weights_beat_prequal_on_bursts() -> None:
    compared = evaluation.compare(bursts, False, read(SHIPPED), seeds=2, requests=6000)
    assert compared.ratio < 1.0
    table = evaluation.table([compared])
    assert table.row_count == 1


def liars_p99(policy: Any, seconds: float, seed: int = 1) -> tuple[float, Policy]:
    fleet = lying_fleet(policy, seconds, seed)
    fleet.run()
    figures = fleet.tallies[0][0].figures(fleet.counted_seconds)
    return float(figures["p99_ms"]), fleet.gateways[0].policy


def test_liars_fool_the_model_and_the_watch_switches_it_off() -> None:
    weights = read(SHIPPED)
    usual, _ = liars_p99(Prequal, 20)
    unguarded, _ = liars_p99(lambda random: Trainee(random, weights, 0.0, Recorder(weights)), 20)
    assert unguarded > 1.15 * usual, "it is fooled"
    alerts: list[str] = []

    def watched(random: Random) -> Policy:
        policy = Learned(random, weights=weights)
        policy.on_alert = alerts.append
        return policy

    guarded, policy = liars_p99(watched, 60)
    assert isinstance(policy, Learned)
    assert policy.switched_off == len(alerts) == 1
    assert "p99" in alerts[0]
    assert guarded < unguarded


def test_the_command_refuses_a_place_it_cannot_write_to_before_training(tmp_path: Path) -> None:
    for out in (tmp_path, tmp_path / "none" / "weights.json"):
        result = CliRunner().invoke(app, ["simulate", "train", "--out", str(out)])
        assert result.exit_code == 1
        assert str(out) in result.output
