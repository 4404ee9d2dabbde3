"""What the log says when models fail: the fault once, where it is, and how often it was not said."""

from __future__ import annotations

from typing import Any

from queued_requests import RecordedRequest, plan_of, rows_of
from runner_bench import Bench, Gated, GatedStream, run, until
from structlog.testing import capture_logs

from isochrone.clock import SECOND
from isochrone.errors import DeadlineExceeded, Internal, InvalidArgument, IsochroneError, ModelFailed
from isochrone.observe.failure_kinds import FailureKinds
from isochrone.worker.execution.failure_log import FailureLog


class Raising(Gated):
    """Fails on 13, alone or in company."""

    def execute(self, inputs: dict[str, Any], outputs: tuple[str, ...] | None) -> dict[str, Any]:
        if 13 in inputs["x"]:
            raise ValueError("not thirteen")
        return super().execute(inputs, outputs)


class RaisingInline(Raising):
    inline_allowed = True


class RaisingStream(GatedStream):
    def stream(self, inputs: dict[str, Any], parameters: Any) -> Any:
        raise ValueError("not thirteen")


def test_only_faults_of_models_and_ours_have_a_line() -> None:
    failures = FailureLog("m", "3")
    with capture_logs() as lines:
        failures.request_failed(DeadlineExceeded("late"))
        failures.request_failed(InvalidArgument("wrong shape"))
        assert not lines
        failures.request_failed(ModelFailed("it raised"))
    assert [(line["event"], line["log_level"]) for line in lines] == [
        ("model failed", "warning"),
        ("traceback of the failure", "debug"),
    ]
    assert (lines[0]["model"], lines[0]["version"], lines[0]["error"]) == ("m", "3", "it raised")
    assert lines[0]["not_shown"] == 0


def raised(line: int) -> ModelFailed:
    """A failure whose cause was raised at a line of its own."""
    error = ModelFailed(f"it raised at {line}")
    try:
        exec(compile("\n" * line + "raise ValueError", "model.py", "exec"))
    except ValueError as cause:
        error.__cause__ = cause
    return error


def shown(*errors: IsochroneError) -> list[str]:
    failures = FailureLog("m", "3")
    with capture_logs() as lines:
        for error in errors:
            failures.request_failed(error)
    return [line["error"] for line in lines if line["log_level"] == "warning"]


def test_different_failures_each_have_a_line() -> None:
    assert shown(ModelFailed("it raised"), Internal("ours"), Internal("ours")) == ["it raised", "ours"]
    assert shown(raised(1), raised(2), raised(1)) == ["it raised at 1", "it raised at 2"]
    assert shown(ModelFailed("cannot take 1"), ModelFailed("cannot take 22")) == ["cannot take 1"]


def test_a_failure_of_another_process_is_known_by_its_traceback() -> None:
    errors = []
    for number, line in enumerate((3, 4, 3)):
        errors.append(ModelFailed(f"failure {'abc'[number]}"))
        errors[-1].add_note(
            f'Traceback:\n  File "model.py", line {line}, in execute\n    fails()\nValueError: {number}'
        )
    assert shown(*errors) == ["failure a", "failure b"]


def test_kinds_are_bounded() -> None:
    """Past the bound, one line stands for all others."""
    names = [f"failed with {'x' * number}" for number in range(60)]
    assert shown(*map(ModelFailed, names)) == names[:33]


def test_kinds_of_long_ago_make_room() -> None:
    kinds = FailureKinds()
    for number in range(40):
        kinds.lets_through(ModelFailed("x" * number), 0)
    assert kinds.lets_through(ModelFailed("another"), SECOND) is None
    assert kinds.lets_through(ModelFailed("another"), 61 * SECOND) == 0
    assert kinds.lets_through(ModelFailed("another"), 62 * SECOND) is None
    assert kinds.lets_through(ModelFailed("another"), 122 * SECOND) == 1


def test_a_traceback_that_comes_with_the_error_is_in_its_line() -> None:
    error = ModelFailed("it raised")
    error.add_note("Traceback: here")
    with capture_logs() as lines:
        FailureLog("m", "3").request_failed(error)
    (line,) = lines
    assert (line["log_level"], line["error"], line["exception"]) == ("warning", "it raised", "Traceback: here")


def test_a_model_that_raises_at_every_request_has_one_line_with_its_cause() -> None:
    for executable, options in ((Raising(), {}), (RaisingInline(), {"run_ns": 50_000}), (RaisingStream(), {})):

        async def scenario(executable: Gated = executable, options: dict[str, int] = options) -> None:
            bench = Bench(executable, max_rows=1, **options)
            for _ in range(5):
                (error,) = await bench.answers(bench.send(13))
                assert isinstance(error, ModelFailed)
            bench.runner.close()

        with capture_logs() as lines:
            run(scenario)
        warnings = [line for line in lines if line["log_level"] == "warning"]
        assert [line["event"] for line in warnings] == ["model failed"]
        assert "ValueError: not thirteen" in warnings[0]["error"]
        (traceback,) = [line["exc_info"] for line in lines if line["event"] == "traceback of the failure"]
        assert isinstance(traceback.__cause__, ValueError)
        assert traceback.__cause__.__traceback__ is not None


def test_a_batch_that_was_run_again_one_by_one_is_told() -> None:
    async def scenario() -> None:
        bench = Bench(Raising())
        requests = [bench.send(value) for value in (1, 13, 2)]
        await until(lambda: all(request.answers for request in requests))
        bench.runner.close()

    with capture_logs() as lines:
        run(scenario)
    (line,) = [line for line in lines if line["event"] == "a batch failed and was run again request by request"]
    assert (line["log_level"], line["requests"], line["failed_alone"]) == ("warning", 3, 1)
    assert line["error"] == "ValueError: not thirteen"


def test_requests_keep_their_order_in_the_account_of_failures() -> None:
    """With preserve_ordering a failure is logged when it happens, not when it is sent."""

    async def scenario() -> None:
        fast, slow = Raising(), Raising()
        bench = Bench(fast, slow, max_rows=1, preserve_ordering=True)
        first = bench.send(-1)
        await until(lambda: fast.entered.is_set() or slow.entered.is_set())
        second = bench.send(13)
        await until(lambda: lines)
        assert not second.answers
        fast.gate.set()
        slow.gate.set()
        await bench.answers(first, second)
        bench.runner.close()

    with capture_logs() as lines:
        run(scenario)
    assert lines[0]["event"] == "model failed"


def test_a_cancelled_request_is_no_failure_of_the_model() -> None:
    async def scenario() -> None:
        bench = Bench(Raising())
        request = RecordedRequest(plan_of(), {"x": rows_of(1)})
        request.cancelled = True
        bench.in_flight += 1
        bench.runner.submit(request)
        await bench.answers(request)
        bench.runner.close()

    with capture_logs() as lines:
        run(scenario)
    assert not lines
