"""The bench of divided GPUs: what counts as a figure."""

from __future__ import annotations

from typing import Any

import pytest

from bench.gpu.green_contexts.__main__ import measure


class FailingJob:
    batch = 4

    def launch(self) -> Any:
        raise RuntimeError("the context cannot replay this graph")


def test_a_batch_job_that_fails_is_a_problem_and_no_figure() -> None:
    job: Any = FailingJob()
    with pytest.raises(RuntimeError, match="the batch job failed: the context cannot replay this graph"):
        measure(None, job, 0.01)
