"""zstd of what crosses: where it is an option, what it costs on each side, and workers that do not have it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from test_partition_planning import ScriptedWorker, names, planned

from isochrone.optimize.partitioning.choices import Option
from isochrone.optimize.partitioning.compressing import CoreCoding, in_zstd, packed_bytes
from isochrone.optimize.partitioning.encodings import Encoding
from isochrone.optimize.partitioning.facts import Arrays
from isochrone.optimize.partitioning.tiers import Answer, Rejected
from two_stage_net import residual_net

SECONDS = {"plain": 0.0001, "zstd": 0.0004}


class CompressingWorker(ScriptedWorker):
    """``has_zstd``: answers in zstd if asked, and takes requests in it. Compression and decompression take 0.3 ms."""

    def __init__(self, tier: str, has_zstd: bool = True, answer_bytes: int | None = None) -> None:
        super().__init__(tier)
        self.tier = tier
        self.asked = 0
        self._has_zstd = has_zstd
        self._answer_bytes = answer_bytes

    def answer(self, model: str, inputs: Arrays, *, in_zstd: bool = False, as_zstd: bool = False) -> Answer:
        self.asked += 1
        if as_zstd and not self._has_zstd:
            raise Rejected(f"{self.tier}: answered 415")
        packs = in_zstd and self._has_zstd and not (as_zstd and self._answer_bytes is None)
        return Answer(
            SECONDS["zstd" if as_zstd else "plain"],
            0.001,
            SECONDS["zstd" if packs else "plain"],
            "zstd" if packs else "identity",
            self._answer_bytes or 10,
            b"x" * 40,
        )


def test_options_that_compress_are_offered_in_zstd_too() -> None:
    encodings = (Encoding.PLAIN, Encoding.FP16)
    edge, core = CompressingWorker("edge"), CompressingWorker("core")
    plan, lines = planned(residual_net(blocks=1), edge, core, *encodings, with_zstd=True)
    assert {"b0 plain", "b0 zstd", "b0 fp16", "b0 fp16+zstd"} <= set(names(plan))
    # 32 bytes for each row: below what is compressed.
    assert "pooled zstd" not in names(plan)
    found = {each.option.name: each for each in plan.options}
    plain, packed = found["b0 plain"], found["b0 zstd"]
    assert (plain.compression, packed.compression) == ("", "zstd")
    assert packed.option.sent_bytes < plain.option.sent_bytes
    assert packed.option.received_bytes == plain.option.received_bytes
    assert packed.option.edge_seconds - plain.option.edge_seconds == pytest.approx(0.0003)
    assert packed.option.core_seconds - plain.option.core_seconds == pytest.approx(0.0003)
    assert packed.stages is plain.stages
    assert any(line.startswith("b0 fp16+zstd: ") for line in lines)


def test_an_answer_that_compresses_counts_on_both_sides() -> None:
    edge, core = CompressingWorker("edge"), CompressingWorker("core", answer_bytes=7)
    plan, _ = planned(residual_net(blocks=1), edge, core, with_zstd=True)
    found = {each.option.name: each.option for each in plan.options}
    assert found["b0 zstd"].received_bytes == 7
    assert found["b0 zstd"].core_seconds - found["b0 plain"].core_seconds == pytest.approx(0.0006)
    assert found["b0 zstd"].edge_seconds - found["b0 plain"].edge_seconds > 0.0003


@pytest.mark.parametrize(("edge_has", "core_has"), [(False, True), (True, False)])
def test_a_worker_without_zstd_is_named_once(edge_has: bool, core_has: bool) -> None:
    edge, core = CompressingWorker("edge", edge_has), CompressingWorker("core", core_has)
    plan, lines = planned(residual_net(blocks=1), edge, core, with_zstd=True)
    assert not [each for each in plan.options if each.compression]
    assert "b0 plain" in names(plan)
    (line,) = [line for line in lines if "left out" in line]
    assert line.startswith("zstd is left out: core: answered 415" if edge_has else "zstd is left out: edge: http://")
    assert (edge.asked, core.asked)[edge_has] <= 1 + 40


def test_nothing_is_asked_in_zstd_unless_it_is_wanted() -> None:
    edge, core = CompressingWorker("edge"), CompressingWorker("core")
    plan, _ = planned(residual_net(blocks=1), edge, core)
    assert not [each for each in plan.options if each.compression]
    assert edge.asked == core.asked == 0


def rows_of(array: Any) -> list[Arrays]:
    return [{"x": row[None]} for row in array]


def test_the_size_is_the_mean_of_real_rows() -> None:
    sparse = np.zeros((2, 4096), np.float32)
    sparse[1, ::7] = np.random.default_rng(1).standard_normal(len(sparse[1, ::7]))
    both = packed_bytes(rows_of(sparse))
    first, second = packed_bytes(rows_of(sparse[:1])), packed_bytes(rows_of(sparse[1:]))
    assert first is not None
    assert second is not None
    assert both == round((first + second) / 2)
    assert first < second
    noise = np.random.default_rng(1).integers(0, 256, (1, 4096), np.uint8)
    assert packed_bytes(rows_of(noise)) is None
    assert packed_bytes(rows_of(np.zeros((1, 16), np.float32))) is None


@given(
    edge=st.floats(0, 1),
    core=st.floats(0, 1),
    compressing=st.floats(0, 1),
    coding=st.floats(0, 1),
    error=st.floats(0, 1),
)
def test_zstd_costs_time_on_both_sides_and_no_error(
    edge: float, core: float, compressing: float, coding: float, error: float
) -> None:
    plain = Option("b plain", edge, core, 1000, 100, error)
    found = in_zstd(plain, "b zstd", 400, compressing, CoreCoding(coding, None, 0.0))
    assert found.edge_seconds == edge + compressing
    assert found.core_seconds == core + coding
    assert (found.sent_bytes, found.received_bytes, found.error) == (400, 100, error)


assert zstandard.__version__
