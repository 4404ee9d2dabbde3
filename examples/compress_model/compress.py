"""Makes a small classifier smaller in two ways, and prints what each costs in accuracy: one table.

    python examples/compress_model/compress.py

Quantization: a float network, the best INT8 file that onnxruntime makes of it after training, and the same network
after quantization-aware training. The float network that is quantized after training has had
as many epochs as the other.
Distillation: a large teacher, a small student that learns from the labels alone, and the same student that learns from
the teacher. Few signals are labelled here, and the teacher has the same labels. The student is distilled twice: on the
labelled signals with their labels, and on all signals from the teacher's outputs only. ``distillation.py`` compares
students where a teacher is expected to help.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnxruntime
import torch
from networks import perceptron
from post_training import int4_variants, int8_variants
from signals import CLASSES, GAINS, LENGTH, make_signals
from torch import nn
from training import Shuffled, on_labels

from isochrone.optimize.measuring.timing import measure
from isochrone.optimize.training import distill, train_quantized

SIGNALS, TEST_SIGNALS, LABELLED = 4000, 5000, 300
#: Rows of a timed request.
TIMED_ROWS = 64
TEST_SEED = 1_000_000


class Row(NamedTuple):
    """One model of one seed: correct answers in %, bytes of its file, milliseconds for TIMED_ROWS rows."""

    accuracy: float
    size: int
    milliseconds: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3, help="networks and training signals are made anew for each")
    parser.add_argument("--gains", type=float, default=GAINS, help="ratio of the sensors' gains; 1: all alike")
    parser.add_argument("--epochs", type=int, default=15, help="of the float network; the others follow it")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    logging.getLogger("root").setLevel(logging.ERROR)
    test = make_signals(TEST_SIGNALS, TEST_SEED, options.gains)
    found: dict[str, list[Row]] = {}
    for seed in range(options.seeds):
        with tempfile.TemporaryDirectory() as directory:
            for name, row in rows_of(seed, test, options.gains, options.epochs, Path(directory)):
                found.setdefault(name, []).append(row)
        print(f"seed {seed + 1} of {options.seeds}", file=sys.stderr, flush=True)
    print_table(found)


def rows_of(seed: int, test: Any, gains: float, epochs: int, directory: Path) -> Iterator[tuple[str, Row]]:
    samples, labels = map(torch.from_numpy, make_signals(SIGNALS, seed, gains))
    yield from quantization(seed, samples, labels, test, epochs, directory)
    yield from distillation(seed, samples, labels, test, epochs, directory)


def quantization(seed: int, samples: Any, labels: Any, test: Any, epochs: int, directory: Path) -> Iterator[Any]:
    batches = Shuffled(samples, labels, SIGNALS)
    more = max(1, epochs // 2)
    torch.manual_seed(seed)
    trained = on_labels(perceptron(LENGTH, 48, 48, 48, 48, CLASSES), batches, epochs, 2e-3, seed)
    longer = on_labels(trained, batches, more, 1e-3, seed)
    exported = export(longer, directory / "float.onnx")
    yield "float", judged(exported, test)

    # The best on the test signals: nobody could choose so well without their labels, it is a bound.
    int8 = [judged(path, test) for _, path in int8_variants(exported, samples.numpy(), directory)]
    yield "best INT8 after training", max(int8)
    int4 = [judged(path, test) for _, path in int4_variants(exported, samples.numpy(), directory)]
    yield "best 4-bit weights after training", max(int4)
    for bits, name in ((None, "INT8, quantization-aware"), (4, "4-bit weights, quantization-aware")):
        result = train_quantized(
            trained, batches, nn.functional.cross_entropy, epochs=more, weight_bits=bits, seed=seed
        )
        result.write(directory / "aware.onnx")
        yield name, judged(directory / "aware.onnx", test)


def distillation(seed: int, samples: Any, labels: Any, test: Any, epochs: int, directory: Path) -> Iterator[Any]:
    """The students have the same number of steps."""
    labelled = Shuffled(samples[:LABELLED], labels[:LABELLED], SIGNALS)
    torch.manual_seed(seed)
    teacher = on_labels(
        perceptron(LENGTH, 256, 256, CLASSES, dropout=0.3), labelled, max(1, 2 * epochs // 3), 1e-3, seed
    )
    yield "teacher", judged(export(teacher, directory / "teacher.onnx"), test)
    student = perceptron(LENGTH, 32, 32, CLASSES)
    alone = on_labels(student, labelled, epochs, 3e-3, seed)
    yield "student, labels alone", judged(export(alone, directory / "student.onnx"), test)
    settings = {"epochs": epochs, "temperature": 1.0, "learning_rate": 3e-3, "seed": seed}
    same = distill(teacher, student, labelled, weight=0.9, **settings)
    yield "student, distilled on the labelled signals", judged(export(same.module, directory / "same.onnx"), test)
    # Only the teacher's outputs: the labels of these signals are not used.
    everything = Shuffled(samples, labels, SIGNALS)
    distilled = distill(teacher, student, everything, weight=1.0, **settings)
    yield "student, distilled on all signals", judged(export(distilled.module, directory / "distilled.onnx"), test)


def export(module: Any, path: Path) -> Path:
    axes = {"input": {0: "rows"}, "output": {0: "rows"}}
    names = {"input_names": ["input"], "output_names": ["output"], "dynamic_axes": axes}
    torch.onnx.export(module.eval(), (torch.zeros(2, LENGTH),), path, dynamo=False, opset_version=17, **names)
    return path


def judged(path: Path, test: Any) -> Row:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, options)
    answers = session.run(None, {"input": test.samples})[0].argmax(axis=1)
    rows = test.samples[:TIMED_ROWS]
    timing = measure(lambda: session.run(None, {"input": rows}), seconds=0.2)
    return Row(100 * float(np.mean(answers == test.labels)), path.stat().st_size, timing.milliseconds)


def print_table(found: dict[str, list[Row]]) -> None:
    print("| model | correct (mean) | lowest and highest | file | 64 rows |")
    print("|---|---|---|---|---|")
    for name, rows in found.items():
        correct = [row.accuracy for row in rows]
        spread = f"{min(correct):.1f}–{max(correct):.1f} %"
        size = f"{rows[0].size / 1024:.1f} KiB"
        time = f"{1000 * statistics.median(row.milliseconds for row in rows):.0f} µs"
        print(f"| {name} | {statistics.mean(correct):.1f} % | {spread} | {size} | {time} |")
    for title, better, base in (
        (
            "quantization-aware over the best INT8 after training",
            "INT8, quantization-aware",
            "best INT8 after training",
        ),
        (
            "the same with 4-bit weights",
            "4-bit weights, quantization-aware",
            "best 4-bit weights after training",
        ),
        ("distilled on all signals over labels alone", "student, distilled on all signals", "student, labels alone"),
        (
            "distilled on the labelled signals over labels alone",
            "student, distilled on the labelled signals",
            "student, labels alone",
        ),
    ):
        gains = [a.accuracy - b.accuracy for a, b in zip(found[better], found[base], strict=True)]
        print(f"{title}: {statistics.mean(gains):+.1f} points (by seed {', '.join(f'{gain:+.1f}' for gain in gains)})")


if __name__ == "__main__":
    main()
