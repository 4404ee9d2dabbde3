"""A synthetic data set: short signals of vibrating machines, classified by the shape of their wave.

A class is a wave: a tone and its overtones with amplitudes and phases of their own. A signal of it starts at a random
phase, runs faster or slower, has noise, and comes from a sensor whose gain nobody calibrated: gains differ
by a factor of up to ``gains``. The same seed makes the same signals.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

LENGTH = 64
CLASSES = 12
#: Between the most and the least sensitive sensor: 32 dB.
GAINS = 40.0
_OVERTONES = 5
#: Of the classes themselves: the same in every data set.
_CLASS_SEED = 2026


class Signals(NamedTuple):
    """``samples``: rows of LENGTH floats; ``labels``: the class of each row."""

    samples: np.ndarray
    labels: np.ndarray


def make_signals(count: int, seed: int, gains: float = GAINS) -> Signals:
    random = np.random.default_rng(seed)
    labels = random.integers(CLASSES, size=count)
    amplitudes, phases = _classes()
    order = np.arange(1, _OVERTONES + 1)
    time = np.linspace(0, 2 * np.pi, LENGTH)
    speed = random.uniform(0.9, 1.1, (count, 1, 1))
    start = random.uniform(-0.8, 0.8, (count, 1, 1))
    angle = (time[None, :, None] * speed * 1.5 + start) * order + phases[labels][:, None]
    waves = (amplitudes[labels][:, None] * np.sin(angle)).sum(axis=-1)
    waves += random.normal(0, 0.5, (count, LENGTH))
    gain = np.exp(random.uniform(-0.5, 0.5, (count, 1)) * np.log(gains))
    return Signals((waves * gain).astype(np.float32), labels.astype(np.int64))


def _classes() -> tuple[np.ndarray, np.ndarray]:
    """The amplitudes and phases of each class's overtones."""
    random = np.random.default_rng(_CLASS_SEED)
    amplitudes = random.uniform(0.2, 1, (CLASSES, _OVERTONES)) / np.sqrt(np.arange(1, _OVERTONES + 1))
    return amplitudes, random.uniform(0, 2 * np.pi, (CLASSES, _OVERTONES))
