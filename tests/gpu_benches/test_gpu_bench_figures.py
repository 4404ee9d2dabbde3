"""The pure parts of bench/gpu: figures, cells, judgements. What needs processes or a GPU is run by hand."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from bench.gpu.figures import ResultsFile, deviation, markdown, percentiles_us, ratios, spread
from bench.gpu.load.cores import split_cores
from bench.gpu.load.generators import fault
from bench.gpu.serve.__main__ import serve_options
from bench.gpu.serve.cells import Cell, chosen, in_turn, plan
from bench.gpu.serve.report import report
from bench.gpu.serve.stages import STAGES, means_us
from bench.gpu.two_tower.open_figures import SECOND, RateSearch, Requests


def test_percentiles_are_in_microseconds() -> None:
    assert percentiles_us([1000 * value for value in range(1, 102)]) == {
        "p50_us": 51.0,
        "p99_us": 100.0,
        "p999_us": pytest.approx(100.9),
    }
    assert percentiles_us([]) == {}


def test_spread_shows_median_and_extremes() -> None:
    assert spread([3000, 1000, 2000]) == "2,000 (1,000–3,000)"
    assert spread([5, None]) == "5"
    assert spread([None]) == "–"


def test_ratios_are_round_by_round_and_leave_out_what_is_missing() -> None:
    assert ratios([9.0, None, 8.0, 7.0], [10.0, 10.0, 16.0, None]) == [0.9, 0.5]


def test_deviation_is_relative_and_never_hides_nan_or_shape() -> None:
    expected = np.array([10.0, -2.0])
    assert deviation(np.array([10.1, -2.0]), expected) == pytest.approx(0.01)
    assert deviation(np.array([np.nan, -2.0]), expected) == float("inf")
    assert deviation(np.array([10.0]), expected) == float("inf")


def test_markdown_table() -> None:
    assert markdown(("a", "b"), [("x", "1")]) == "| a | b |\n|---|---:|\n| x | 1 |"


def test_results_are_on_disk_after_every_figure(tmp_path: Path) -> None:
    results = ResultsFile("trial", tmp_path, device="cpu")
    results.add(cell="one", rate=1.0)
    written = json.loads((tmp_path / "trial.json").read_text())
    assert written["figures"] == [{"cell": "one", "rate": 1.0}]
    assert written["device"] == "cpu"


def test_cells_are_chosen_by_pattern() -> None:
    cells = plan(["resnet50", "encoder"], 256)
    assert len(cells) == 2 * 4 * 2 * 3
    found = chosen(cells, "encoder/overlap/cuda_shm/*")
    assert found == [Cell("encoder", "overlap", "cuda_shm", 1), Cell("encoder", "overlap", "cuda_shm", 256)]
    assert chosen(cells, "") == cells
    with pytest.raises(ValueError, match="vgg"):
        chosen(cells, "vgg/*")


def test_cuda_regions_are_allowed_where_a_cell_needs_them() -> None:
    cells = plan(["encoder"], 8)
    assert "--allow-cuda-shared-memory" in serve_options(cells, 1)
    assert "--allow-cuda-shared-memory" not in serve_options(chosen(cells, "encoder/*/system_shm/*"), 1)


def test_rounds_alternate_their_order() -> None:
    cells = plan(["encoder"], 8, ["bytes"])
    order = list(in_turn(cells, 2))
    assert [cell for number, cell in order if number == 1] == cells[::-1]


def test_cores_are_shared_only_where_there_are_too_few() -> None:
    assert split_cores(range(16), 6) == (list(range(6)), list(range(6, 16)))
    assert split_cores([0, 1], 6) == ([0, 1], [0, 1])


def served(
    rate: float, median_us: float, in_flight: int, variant: str = "overlap", **more: object
) -> dict[str, object]:
    cell = Cell("encoder", variant, "cuda_shm", in_flight)
    figure = {"requests_per_second": rate, "p50_us": median_us, "p99_us": 2 * median_us, "generator_cpu": [0.2]}
    return {
        "kind": "served",
        "round": 0,
        "cell": cell.name,
        **vars(cell),
        **figure,
        "server_cores": 1.0,
        "stages_us": {"queue": 10.0, "compute_infer": 620.0},
        "problem": "",
        **more,
    }


RAW = [
    {"kind": "raw", "round": 0, "model": "encoder", "mode": "replay", "batch": 64, "rows_per_second": 1000.0},
    {"kind": "raw", "round": 0, "model": "encoder", "mode": "copies", "batch": 64, "rows_per_second": 950.0},
    {
        "kind": "raw",
        "round": 0,
        "model": "encoder",
        "mode": "call",
        "batch": 1,
        "rows_per_second": 1.0,
        "p50_us": 500.0,
    },
]


def test_promises_are_judged_against_raw_of_the_same_round() -> None:
    text, failed = report([*RAW, served(920, 9000, 256), served(1, 700, 1)], 64, "cuda")
    assert not failed
    assert "MET: encoder/overlap/cuda_shm/256: 92% of raw replay" in text
    assert "MET: encoder/overlap/cuda_shm/1: +0.200 ms" in text
    text, _ = report([*RAW, served(800, 9000, 256), served(1, 800, 1)], 64, "cuda")
    assert text.count("MISSED") == 2


def test_stages_are_means_of_the_requests_between_two_readings() -> None:
    before = dict.fromkeys(STAGES, (10, 5_000_000))
    after = {**before, "queue": (14, 5_008_000), "compute_infer": (12, 6_200_000)}
    assert means_us(before, after) == {"queue": 2.0, "compute_infer": 600.0}
    text, _ = report([*RAW, served(1, 700, 1)], 64, "cuda")
    header, _, row = (
        line.split("|") for line in text.splitlines() if "1 in flight" in line or "0.700" in line or "--" in line
    )
    assert row[[name.strip() for name in header].index("mean compute_infer ms")].strip() == "0.620"


def test_what_is_judged_is_what_a_cell_promises(monkeypatch: pytest.MonkeyPatch) -> None:
    figures = [*RAW, served(920, 9000, 256), served(1, 700, 1), served(920, 9000, 256, "plain")]
    text, _ = report(figures, 64, "cuda")
    assert text.count("MET") == 2
    assert "encoder/plain" not in text.partition("MET")[2]
    monkeypatch.setattr(Cell, "is_promised", property(lambda cell: cell.variant == "plain"))
    text, _ = report(figures, 64, "cuda")
    assert text.count("MET") == 1
    assert "MET: encoder/plain/cuda_shm/256: 92% of raw replay" in text


def test_faster_than_raw_is_not_judged() -> None:
    text, _ = report([*RAW, served(3740, 9000, 256), served(1, 100, 1)], 64, "cuda")
    assert text.count("NOT JUDGED") == 2
    assert "MET" not in text


def test_a_cpu_run_judges_no_promise_and_a_failed_cell_is_named() -> None:
    text, failed = report([*RAW, served(920, 9000, 256), served(1, 700, 1, problem="3 failed: refused")], 64, "cpu")
    assert "MET" not in text
    assert failed == ["encoder/overlap/cuda_shm/1"]
    assert "FAILED encoder/overlap/cuda_shm/1: 3 failed: refused" in text


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, ""),
        ({"failed": 2, "problems": Counter({"refused": 2})}, "2 failed: refused"),
        ({"answers": 0}, "no answer in the measured time"),
        ({"verified": 0}, "no answer was checked"),
        ({"worst_deviation": 0.5}, "wrong answers: off by 0.5 of the largest value"),
    ],
)
def test_what_makes_a_figure_invalid(change: dict[str, object], reason: str) -> None:
    figure = {"failed": 0, "problems": {}, "answers": 5, "verified": 5, "worst_deviation": 0.001, **change}
    assert fault(figure) == reason


def requests(rows: list[tuple[float, float, float, int]]) -> Requests:
    due, sent, ended, versions = (np.array(column) for column in zip(*rows, strict=True))
    return Requests(*((each * SECOND).astype(np.int64) for each in (due, sent, ended)), versions)


def test_an_old_answer_to_a_request_in_flight_is_no_violation() -> None:
    found = requests([(1.0, 1.0, 1.2, 1), (1.05, 1.05, 1.1, 2), (1.3, 1.3, 1.4, 2)]).switch(0, 1, 2)
    assert (found["violations"], found["old_answers_received_after"]) == (0, 1)


def test_an_old_answer_to_a_later_request_is_a_violation() -> None:
    found = requests([(1.0, 1.0, 1.1, 2), (1.2, 1.2, 1.3, 1)]).switch(0, 1, 2)
    assert found["violations"] == 1


@pytest.mark.parametrize("slow_at", range(8))
def test_every_second_is_in_a_figure_of_the_switch(slow_at: int) -> None:
    """The first new answer comes in second 4: it, the one before and the one after are around the switch."""
    latency = [0.5 if second == slow_at else 0.1 for second in range(8)]
    rows = [(second + 0.2, second + 0.2, second + 0.2 + latency[second], 1 + (second >= 4)) for second in range(8)]
    found = requests(rows).switch(0, 1, 2)
    is_around = slow_at in (3, 4, 5)
    assert found["p99_ms_around_switch"] == pytest.approx(500 if is_around else 100)
    assert found["p99_ms_other_seconds_worst"] == pytest.approx(100 if is_around else 500)
    assert found["p99_ms_other_seconds_median"] == pytest.approx(100)


def test_a_switch_that_never_came() -> None:
    assert requests([(1.0, 1.0, 1.1, 1)]).switch(0, 1, 2) == {"switched": False, "answers_old": 1}


def test_latency_counts_from_the_due_instant_and_failures_are_counted() -> None:
    found = requests([(1.0, 1.5, 2.0, 1), (1.0, 1.0, 0.0, 0)]).figure()
    assert (found["p50_us"], found["requests"], found["unanswered"]) == (1_000_000.0, 2, 1)


def test_the_rate_search_closes_in_from_both_sides() -> None:
    search = RateSearch(1000, most_steps=20)
    while (rate := search.next()) is not None:
        search.record(rate, rate <= 3100)
    assert 3100 / 1.05 <= search.kept <= 3100
    search = RateSearch(1000, most_steps=20)
    while (rate := search.next()) is not None:
        search.record(rate, rate <= 70)
    assert 70 / 1.05 <= search.kept <= 70
