"""Compares a student that learns from a teacher with the same student that learns from labels alone, in two set-ups.

    python examples/compress_model/distillation.py

Both set-ups were fixed before either was run; docs/training.md reports both.

more-labels: the teacher was trained on 20,000 labelled signals that the student does not have. The student has 300
labelled signals, and 20,000 others without labels.
wrong-labels: teacher and student have the same 4,000 labelled signals. The labels of 40 % of them are replaced by
classes drawn at random.

In both, student, first weights, number of steps and learning rates are the same for both sides. The distilled student
learns from the teacher's outputs only (weight 1, temperature 2), on all signals that it has. Labels alone for so many
steps may learn the few labels by heart, so the student is also trained on them for a half and a quarter of the steps;
the best of the three, chosen on the test signals, is a bound that favours labels alone. Five seeds, which no trial
before has used; test signals that no trial has used, with true labels.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from networks import perceptron
from signals import CLASSES, LENGTH, make_signals
from training import Shuffled, on_labels

from isochrone.optimize.training import distill

FIRST_SEED, SEEDS = 101, 5
#: Added to a seed: data sets of one seed that share no signals.
TEACHER_SEED, UNLABELLED_SEED, TEST_SEED = 10_000, 20_000, 2_000_000
TEST_SIGNALS = 5000
MANY, LABELLED, SAME, WRONG = 20_000, 300, 4000, 0.4
#: Of random signals per epoch.
EPOCH_ROWS, EPOCHS = 4000, 40
TEACHER_RATE, STUDENT_RATE, TEMPERATURE = 1e-3, 3e-3, 2.0


class Given(NamedTuple):
    """What one seed of a set-up trains on: pairs of samples and labels, and the student's samples without labels."""

    teacher: tuple[Any, Any]
    student: tuple[Any, Any]
    distilled: Any


def more_labels(seed: int) -> Given:
    samples, labels = _signals(LABELLED, seed)
    unlabelled, _ = _signals(MANY, UNLABELLED_SEED + seed)
    return Given(_signals(MANY, TEACHER_SEED + seed), (samples, labels), torch.cat((samples, unlabelled)))


def wrong_labels(seed: int) -> Given:
    samples, labels = _signals(SAME, seed)
    draw = torch.Generator().manual_seed(seed)
    is_wrong = torch.rand(SAME, generator=draw) < WRONG
    labels = torch.where(is_wrong, torch.randint(CLASSES, (SAME,), generator=draw), labels)
    return Given((samples, labels), (samples, labels), samples)


SETUPS: dict[str, Callable[[int], Given]] = {"more-labels": more_labels, "wrong-labels": wrong_labels}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--epochs", type=int, default=EPOCHS, help="of teacher and students")
    options = parser.parse_args()
    torch.set_num_threads(1)
    test = _signals(TEST_SIGNALS, TEST_SEED)
    for name, setup in SETUPS.items():
        found: dict[str, list[float]] = {}
        for seed in range(FIRST_SEED, FIRST_SEED + options.seeds):
            for model, correct in compared(setup(seed), test, options.epochs, seed).items():
                found.setdefault(model, []).append(correct)
            print(f"{name}: seed {seed}", file=sys.stderr, flush=True)
        print_setup(name, found)


def compared(given: Given, test: tuple[Any, Any], epochs: int, seed: int) -> dict[str, float]:
    """Correct answers of each model, in %."""
    torch.manual_seed(seed)
    large, student = perceptron(LENGTH, 256, 256, CLASSES, dropout=0.3), perceptron(LENGTH, 32, 32, CLASSES)
    teacher = on_labels(large, Shuffled(*given.teacher, EPOCH_ROWS), epochs, TEACHER_RATE, seed)
    labelled = Shuffled(*given.student, EPOCH_ROWS)
    alone = [
        _correct(on_labels(student, labelled, max(1, epochs // part), STUDENT_RATE, seed), test) for part in (1, 2, 4)
    ]
    # The labels are not read: the teacher's share of the loss is 1.
    unread = torch.zeros(len(given.distilled), dtype=torch.int64)
    distilled = distill(
        teacher,
        student,
        Shuffled(given.distilled, unread, EPOCH_ROWS),
        epochs=epochs,
        weight=1.0,
        temperature=TEMPERATURE,
        learning_rate=STUDENT_RATE,
        seed=seed,
    )
    return {
        "teacher": _correct(teacher, test),
        "student, labels alone": alone[0],
        "student, labels alone, best number of steps": max(alone),
        "student, distilled": _correct(distilled.module, test),
    }


def print_setup(name: str, found: dict[str, list[float]]) -> None:
    print(f"\n| {name} | correct (mean) | by seed |")
    print("|---|---|---|")
    for model, correct in found.items():
        print(f"| {model} | {statistics.mean(correct):.1f} % | {', '.join(f'{each:.1f}' for each in correct)} |")
    for base in ("student, labels alone", "student, labels alone, best number of steps"):
        gains = [one - other for one, other in zip(found["student, distilled"], found[base], strict=True)]
        spread = f", standard deviation {statistics.stdev(gains):.1f}" if len(gains) > 1 else ""
        by_seed = ", ".join(f"{gain:+.1f}" for gain in gains)
        print(f"distilled over {base}: {statistics.mean(gains):+.1f} points{spread} (by seed {by_seed})")


def _signals(count: int, seed: int) -> tuple[Any, Any]:
    samples, labels = make_signals(count, seed)
    return torch.from_numpy(samples), torch.from_numpy(labels)


def _correct(module: Any, test: tuple[Any, Any]) -> float:
    samples, labels = test
    with torch.no_grad():
        answers = module(samples).argmax(dim=1)
    return 100 * float((answers == labels).float().mean())


if __name__ == "__main__":
    main()
