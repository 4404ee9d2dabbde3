"""The user's ``TritonPythonModel`` through its life, without a worker around it."""

from __future__ import annotations

import gc
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from called_server import RecordedServer
from queued_requests import RecordedRequest, rows_of

from isochrone.clock import NEVER
from isochrone.errors import ConfigError, IsochroneError, ModelFailed, NotFound
from isochrone.protocol.messages import Plan
from isochrone.worker.backends.python.triton.model import TritonModel, TritonModelContext
from isochrone.worker.backends.python.triton.responses import InferenceResponse
from isochrone.worker.backends.python.triton.server import Errand, RunningErrands

HEAD = """
import numpy as np
import triton_python_backend_utils as pb_utils


def respond(value=1.0):
    return pb_utils.InferenceResponse([pb_utils.Tensor("y", np.array([[value]], np.float32))])


"""


class Outlet:
    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.over = threading.Event()

    def send(self, answer: Any, is_last: bool) -> None:
        self.sent.append(answer)
        if is_last:
            self.over.set()

    def is_cancelled(self) -> bool:
        return False


Make = Callable[..., TritonModel]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """``make(methods)``: a model of these methods; nothing of it is left in the interpreter."""
    finders, made = list(sys.meta_path), []

    def build(methods: str, *, decoupled: bool = False, source: str = "", server: Any = None) -> TritonModel:
        body = HEAD + "class TritonPythonModel:\n" + textwrap.indent(textwrap.dedent(methods), "    ")
        (tmp_path / "model.py").write_text(source or body)
        args = {"model_instance_name": "m_0", "model_config": "{}"}
        context = TritonModelContext("m", "1", tmp_path, "model.py", args, ("y",), decoupled)
        made.append(TritonModel(context, server or RecordedServer()))
        return made[-1]

    yield build
    for model in made:
        model.close()
    gc.collect()
    assert sys.meta_path == finders
    assert not [name for name in list(sys.modules) if name.startswith("isochrone_model_m_1_")]


def request(
    value: float = 1, *, outputs: tuple[str, ...] | None = None, priority: int = 0, deadline: int = NEVER
) -> Any:
    plan = Plan("m", "", (("x", "FP32", (1, 1)),), outputs, priority=priority)
    return RecordedRequest(plan, {"x": rows_of(value)}, deadline=deadline)


class Outlets(dict[Any, Outlet]):
    def __call__(self, request: Any) -> Outlet:
        return self.setdefault(request, Outlet())


def execute(model: TritonModel, *requests: Any) -> list[Any]:
    return model.execute(requests or (request(),), Outlets())


def test_life(make: Make) -> None:
    model = make(
        """
        def initialize(self, args):
            self.name = args["model_instance_name"]

        def execute(self, requests):
            return [respond(request.inputs()[0].as_numpy()[0, 0] * 2) for request in requests]
        """
    )
    answers = execute(model, request(2), request(3))
    assert [answer["y"].tolist() for answer in answers] == [[[4]], [[6]]]
    assert not model.is_async
    assert not model.calls_others


def test_finalize_is_called(tmp_path: Path) -> None:
    source = "class TritonPythonModel:\n    def finalize(self):\n        open(__file__ + '.done', 'w').close()\n"
    (tmp_path / "model.py").write_text(source)
    context = TritonModelContext("m", "1", tmp_path, "model.py", {"model_instance_name": "m_0"}, ("y",), False)
    TritonModel(context, RecordedServer()).close()
    assert (tmp_path / "model.py.done").exists()


@pytest.mark.parametrize(
    ("source", "kind", "words"),
    [
        ("raise ValueError('at import')", ModelFailed, "ValueError: at import\n\nAt:\n"),
        ("import sys\nsys.exit(3)", ModelFailed, "SystemExit: 3"),
        ("x = (", ModelFailed, "SyntaxError"),
        ("TritonPythonModel = 5", ConfigError, "expected a class, given a int"),
        ("other = 5", ConfigError, "expected a class, given no such name"),
        (
            "class TritonPythonModel:\n    def __init__(self):\n        raise KeyError('made')",
            ModelFailed,
            "KeyError: 'made'",
        ),
        ("class TritonPythonModel:\n    def initialize(self, args):\n        1 / 0", ModelFailed, "ZeroDivisionError"),
    ],
)
def test_models_that_cannot_be_made(make: Make, source: str, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        make("", source=source)


def test_no_such_file(tmp_path: Path) -> None:
    context = TritonModelContext("m", "1", tmp_path, "none.py", {"model_instance_name": "m_0"}, (), False)
    with pytest.raises(ConfigError, match=r"none.py: model file: expected a python file"):
        TritonModel(context, RecordedServer())


def test_finalize_that_raises_leaves_no_module(tmp_path: Path) -> None:
    source = "class TritonPythonModel:\n    def finalize(self):\n        raise ValueError('at the end')\n"
    (tmp_path / "model.py").write_text(source)
    context = TritonModelContext("m", "1", tmp_path, "model.py", {"model_instance_name": "m_0"}, ("y",), False)
    with pytest.raises(ModelFailed, match="ValueError: at the end"):
        TritonModel(context, RecordedServer()).close()
    assert not [name for name in list(sys.modules) if name.startswith("isochrone_model_m_1_")]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("return []", "size is:2, and InferenceResponse(s) size is:0"),
        ("return 5", "Expected a list in the execute return, found type '<class 'int'>'."),
        ("return [respond(), 5]", "found type '<class 'int'>'"),
        ("raise ValueError('of its own')", "message: ValueError: of its own\n\nAt:\n"),
        ("raise SystemExit(4)", "SystemExit: 4"),
    ],
)
def test_every_request_of_a_failed_run_fails(make: Make, body: str, words: str) -> None:
    answers = execute(make(f"def execute(self, requests):\n    {body}\n"), request(), request())
    assert len(answers) == 2
    for answer in answers:
        assert isinstance(answer, ModelFailed)
        assert str(answer).startswith("Failed to process the request(s) for model 'm_0', message: ")
        assert words in str(answer)


def test_no_execute(make: Make) -> None:
    (answer,) = execute(make("pass"))
    assert "does not implement `execute` method" in str(answer)


def test_each_response_is_its_own(make: Make) -> None:
    model = make(
        """
        def execute(self, requests):
            error = pb_utils.TritonError("not here", pb_utils.TritonError.NOT_FOUND)
            return [respond(), pb_utils.InferenceResponse(error=error), None]
        """
    )
    first, second, third = execute(model, request(), request(), request())
    assert first["y"].tolist() == [[1]]
    assert isinstance(second, NotFound)
    assert "found None for a request whose response sender was not used" in str(third)


def test_only_wanted_outputs(make: Make) -> None:
    model = make("def execute(self, requests):\n    return [respond() for _ in requests]\n")
    answers = execute(model, request(outputs=("y",)), request(outputs=("z",)))
    assert [list(answer) for answer in answers] == [["y"], []]


def test_answers_through_the_sender(make: Make) -> None:
    """One request answers itself, another by what the run returns, a third fails with the run's error."""
    model = make(
        """
        def execute(self, requests):
            requests[0].get_response_sender().send(respond(5.0), flags=1)
            if len(requests) > 2:
                raise ValueError("too many")
            return [None, respond(6.0)]
        """
    )
    outlets = Outlets()
    asked = [request() for _ in range(2)]
    first, second = model.execute(asked, outlets)
    assert first is None
    assert outlets[asked[0]].sent[0]["y"].tolist() == [[5]]
    assert second["y"].tolist() == [[6]]
    asked = [request() for _ in range(3)]
    answers = model.execute(asked, outlets)
    assert answers[0] is None
    assert len(outlets[asked[0]].sent) == 1
    assert all("too many" in str(answer) for answer in answers[1:])
    assert asked[1] not in outlets


def test_a_response_beside_one_that_was_sent(make: Make) -> None:
    model = make(
        """
        def execute(self, requests):
            requests[0].get_response_sender().send(respond(5.0), flags=1)
            return [respond(6.0)]
        """
    )
    outlets, asked = Outlets(), request()
    assert model.execute((asked,), outlets) == [None]
    assert outlets[asked].sent[0]["y"].tolist() == [[5]]


@pytest.mark.parametrize("decoupled", [False, True])
@pytest.mark.parametrize(
    ("ending", "is_async", "words"),
    [
        ("raise ValueError('afterwards')", False, "ValueError: afterwards"),
        ("raise ValueError('afterwards')", True, "ValueError: afterwards"),
        ("sender.send(respond(), flags=1)", False, "Unable to send response."),
        ("sender.send(respond(), flags=1)", True, "Unable to send response."),
        ("return [respond()]", False, ""),
        ("return 5", False, ""),
    ],
)
def test_what_fails_after_the_answer_is_logged_once(
    make: Make, decoupled: bool, ending: str, is_async: bool, words: str
) -> None:
    server = RecordedServer()
    model = make(
        f"""
        {"async " if is_async else ""}def execute(self, requests):
            for request in requests:
                sender = request.get_response_sender()
                sender.send(respond(5.0), flags=1)
            {ending}
        """,
        decoupled=decoupled,
        server=server,
    )
    for _ in range(3):
        outlets, asked = Outlets(), [request(), request()]
        assert model.execute(asked, outlets) == [None, None]
        assert all(outlets(each).over.wait(60) for each in asked)
        assert [[answer["y"].tolist() for answer in outlets[each].sent] for each in asked] == [[[[5]]]] * 2
    assert server.has_logged.wait(60)  # a coroutine may still run
    ((level, text),) = server.logged
    assert level == "warning"
    assert text.startswith("execute failed after its requests were answered: Failed to process the request(s)")
    assert words in text
    if words:
        assert f"    {ending}\n" in text


def test_a_run_that_fails_by_one_response_fails_the_request_beside_it(make: Make) -> None:
    """The first request has a sender that was not used; the second was answered twice."""
    model = make(
        """
        def execute(self, requests):
            first, second = [request.get_response_sender() for request in requests]
            second.send(respond(5.0), flags=1)
            return [respond(6.0), respond(7.0)]
        """
    )
    outlets, asked = Outlets(), [request(), request()]
    assert model.execute(asked, outlets) == [None, None]
    (failure,) = outlets[asked[0]].sent
    assert "cannot send more than one response" in str(failure)
    assert [answer["y"].tolist() for answer in outlets[asked[1]].sent] == [[[5]]]


def test_a_response_whose_error_cannot_be_read(make: Make) -> None:
    model = make(
        """
        def execute(self, requests):
            class Odd(pb_utils.InferenceResponse):
                def error(self):
                    raise SystemExit("no error")

            if len(requests) > 1:
                requests[0].get_response_sender().send(Odd(), flags=1)
                return [None, respond()]
            return [Odd()]
        """
    )
    assert "no error" in str(execute(model)[0])
    outlets, asked = Outlets(), [request(), request()]
    assert model.execute(asked, outlets)[0] is None
    assert "no error" in str(outlets[asked[0]].sent[0])


def test_a_decoupled_model_returns_nothing(make: Make) -> None:
    model = make("def execute(self, requests):\n    return [respond()]\n", decoupled=True)
    (answer,) = execute(model)
    assert "is using the decoupled mode and the execute function must return None" in str(answer)


def test_a_decoupled_model_that_lets_its_request_go(make: Make) -> None:
    model = make("def execute(self, requests):\n    return None\n", decoupled=True)
    outlets, asked = Outlets(), request()
    assert model.execute((asked,), outlets) == [None]
    gc.collect()
    assert outlets[asked].sent == [None]
    assert outlets[asked].over.is_set()


@pytest.mark.parametrize("decoupled", [False, True])
def test_coroutines(make: Make, decoupled: bool) -> None:
    model = make(
        """
        async def execute(self, requests):
            import asyncio

            await asyncio.sleep(0)
            if requests[0].inputs()[0].as_numpy()[0, 0] < 0:
                raise ValueError("in a coroutine")
            if DECOUPLED:
                requests[0].get_response_sender().send(respond(8.0), flags=1)
                return None
            return [respond(8.0)]
        """.replace("DECOUPLED", str(decoupled)),
        decoupled=decoupled,
    )
    assert model.is_async
    outlets, right, wrong = Outlets(), request(1), request(-1)
    answers = [model.execute((each,), outlets)[0] for each in (right, wrong)]
    if decoupled:
        assert answers == [None, None]
        assert all(outlets(each).over.wait(60) for each in (right, wrong))
        answers = [outlets[each].sent[-1] for each in (right, wrong)]
    assert answers[0]["y"].tolist() == [[8]]
    assert "ValueError: in a coroutine" in str(answers[1])


def test_what_a_call_inherits(make: Make) -> None:
    """Of the requests of a run: the latest deadline, the highest priority, the longest chain."""
    server = RecordedServer(lambda call: [InferenceResponse()])
    model = make(
        """
        def execute(self, requests):
            pb_utils.InferenceRequest(model_name="other", inputs=[], requested_output_names=["y"]).exec()
            return [respond() for _ in requests]
        """,
        server=server,
    )
    assert model.calls_others

    class Called(RecordedRequest):
        @property
        def call_chain(self) -> tuple[Any, ...]:
            return (("a", "1"), ("b", "1"))

    called = Called(request(priority=3).plan, {"x": rows_of(1)}, deadline=7)
    for asked, expected in [
        ((request(deadline=5, priority=2),), (5, 2, ())),
        ((request(deadline=5), called), (7, 3, (("a", "1"), ("b", "1")))),
        ((request(deadline=5, priority=2), request(deadline=9, priority=1)), (9, 1, ())),
        ((request(),), (NEVER, 0, ())),
    ]:
        answers = execute(model, *asked)
        assert not any(isinstance(answer, IsochroneError) for answer in answers)
        errand = server.calls[-1].errand
        assert (errand.deadline, errand.priority, errand.chain) == expected


_FROM_THREADS = """
    def execute(self, requests):
        from concurrent.futures import ThreadPoolExecutor

        def call():
            pb_utils.InferenceRequest(model_name="other", inputs=[], requested_output_names=["y"]).exec()

        with ThreadPoolExecutor(2) as pool:
            for each in [pool.submit(call) for _ in range(2)]:
                each.result()
        return [respond() for _ in requests]
"""
_FROM_THREADS_OF_A_COROUTINE = """
    async def execute(self, requests):
        import asyncio

        def call():
            pb_utils.InferenceRequest(model_name="other", inputs=[], requested_output_names=["y"]).exec()

        sender = requests[0].get_response_sender()
        await asyncio.get_running_loop().run_in_executor(None, call)
        sender.send(flags=1)
"""


@pytest.mark.parametrize("is_decoupled", [False, True])
def test_what_a_call_from_a_thread_inherits(make: Make, is_decoupled: bool) -> None:
    server = RecordedServer(lambda call: [InferenceResponse()])
    source = _FROM_THREADS_OF_A_COROUTINE if is_decoupled else _FROM_THREADS
    model = make(source, server=server, decoupled=is_decoupled)
    outlets = Outlets()
    for deadline in (5, 7):
        asked = request(deadline=deadline, priority=2)
        model.execute((asked,), outlets)
        if is_decoupled:
            assert outlets(asked).over.wait(60)
        assert {(call.errand.deadline, call.errand.priority) for call in server.calls} == {(deadline, 2)}
        server.calls.clear()


def test_a_thread_beside_several_runs_has_nobodys_deadline() -> None:
    errands = RunningErrands()
    assert errands.current() == Errand()
    first, second = Errand(5, 1), Errand(6, 1)
    errands.begin(first)
    errands.begin(first)
    assert errands.current() == first
    errands.begin(second)
    assert errands.current() == Errand()
    errands.end(first)
    errands.end(first)
    assert errands.current() == second


def test_responses_that_cannot_be_written_fail_alone(make: Make) -> None:
    model = make(
        """
        def execute(self, requests):
            class Odd:
                def __str__(self):
                    raise ValueError("no text")

            bad = np.array([[Odd()]], dtype=np.object_)
            return [pb_utils.InferenceResponse([pb_utils.Tensor("y", bad)]), respond(2.0)]
        """
    )
    first, second = execute(model, request(), request())
    assert "no text" in str(first)
    assert second["y"].tolist() == [[2]]


def test_arguments_are_the_models_own(make: Make) -> None:
    model = make(
        """
        def initialize(self, args):
            args.clear()

        def execute(self, requests):
            return [respond() for _ in requests]
        """
    )
    assert execute(model)[0]["y"].tolist() == [[1]]
