"""Requests of a Triton model in a process of its own: what goes over, and what comes back."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from isolated_triton import DECOUPLED, context, failure, outlet, request, run, start

from isochrone.errors import ConfigError, InvalidArgument, ModelFailed, Unavailable
from isochrone.protocol.messages import InferRequest, Plan
from isochrone.protocol.response_outputs import parameters_of
from isochrone.worker.backends.python.backend import load

pytestmark = pytest.mark.usefixtures("nothing_leaks")

ECHO = """
class TritonPythonModel:
    def execute(self, requests):
        return [response(x_of(request)) for request in requests]
"""


def test_requests_of_a_batch_each_get_their_answer(tmp_path: Path) -> None:
    executable = start(tmp_path, ECHO)
    assert executable.takes_requests
    assert not executable.inline_allowed
    assert not executable.warms_up
    assert run(executable, request(1, 2), request(3), request()) == [[1, 2], [3], []]
    assert executable.execute({"x": np.ones((1, 2), np.float32)}, None)["y"].tolist() == [[1, 1]]
    executable.close()


def test_every_type_goes_over_and_comes_back(tmp_path: Path) -> None:
    kinds = {"f": "FP32", "h": "FP16", "i": "INT64", "u": "UINT8", "t": "BOOL", "s": "STRING"}
    config = "".join(
        f'input {{ name: "{name}" data_type: TYPE_{kind} dims: [-1] }}'
        f' output {{ name: "{name}_out" data_type: TYPE_{kind} dims: [-1] }}'
        for name, kind in kinds.items()
    )
    source = """
    class TritonPythonModel:
        def execute(self, requests):
            answers = []
            for request in requests:
                tensors = []
                for tensor in request.inputs():
                    array = tensor.as_numpy()
                    assert array.flags.writeable
                    tensors.append(pb_utils.Tensor(tensor.name() + "_out", array[::-1]))
                answers.append(pb_utils.InferenceResponse(tensors))
            return answers
    """
    executable = start(tmp_path, source, config)
    for rows in (0, 1, 3, 5000):  # in the message, and in blocks
        inputs = {
            "f": np.arange(rows * 2, dtype=np.float32).reshape(rows, 2),
            "h": np.arange(rows, dtype=np.float16),
            "i": np.arange(rows, dtype=np.int64),
            "u": np.arange(rows, dtype=np.uint64).astype(np.uint8),
            "t": np.arange(rows) % 2 == 0,
            "s": np.array([b"\xff" * (n % 9) for n in range(rows)], np.object_),
        }
        plan = Plan("m", "1", tuple((name, "", array.shape) for name, array in inputs.items()), None)
        (answer,) = executable.execute_requests([InferRequest(plan, "", inputs, 0)])
        assert isinstance(answer, dict), answer
        for name, array in inputs.items():
            given = answer[f"{name}_out"]
            assert given.dtype == array.dtype
            assert given.shape == array.shape
            assert given.tolist() == array[::-1].tolist()
    executable.close()


def test_a_request_has_everything_that_its_caller_gave(tmp_path: Path) -> None:
    source = """
    class TritonPythonModel:
        def initialize(self, args):
            self.args = args

        def execute(self, requests):
            (request,) = requests
            seen = {
                "id": request.request_id(),
                "correlation": request.correlation_id(),
                "flags": request.flags(),
                "timeout": request.timeout(),
                "parameters": json.loads(request.parameters()),
                "outputs": sorted(request.requested_output_names()),
                "instance": self.args["model_instance_name"],
                "version": self.args["model_version"],
                "directory": pb_utils.get_model_dir(),
            }
            return [response([[1]], parameters={"seen": json.dumps(seen), "flag": True, "number": 7})]
    """
    executable = start(tmp_path, source)
    asked = request(
        1,
        outputs=("y",),
        request_id="one",
        sequence_id="user-1",
        sequence_start=True,
        sequence_end=True,
        timeout_ns=5_000,
        parameters={"a": True, "b": 1, "c": 0.5, "d": "é"},
    )
    (answer,) = executable.execute_requests([asked])
    assert isinstance(answer, dict), answer
    parameters = dict(parameters_of(answer))
    seen = json.loads(str(parameters.pop("seen")))
    assert parameters == {"flag": True, "number": 7}
    assert seen == {
        "id": "one",
        "correlation": "user-1",
        "flags": 3,
        "timeout": 5,
        "parameters": {"a": True, "b": 1, "c": 0.5, "d": "é"},
        "outputs": ["y"],
        "instance": "m_0",
        "version": "1",
        "directory": str(tmp_path),
    }
    executable.close()


def test_large_results_stay_as_they_were_while_someone_holds_them(tmp_path: Path) -> None:
    executable = start(tmp_path, ECHO)
    held = []
    for number in range(8):  # more than there are blocks, each larger than the last
        array = np.full((1, 50_000 * (1 + number)), number, np.float32)
        (answer,) = executable.execute_requests([request(array=array)])
        assert isinstance(answer, dict), answer
        held.append((number, answer["y"]))
    assert all((y == number).all() for number, y in held)
    assert sum(not y.flags.owndata for _, y in held) == 3
    executable.close()
    assert all((y == number).all() for number, y in held)


def test_large_inputs_stay_as_they_were_while_the_model_holds_them(tmp_path: Path) -> None:
    source = """
    class TritonPythonModel:
        kept = []

        def execute(self, requests):
            self.kept += [x_of(request) for request in requests]
            if len(self.kept) > 8:
                del self.kept[:-1]
            return [response([[float((array == number).all()) for number, array in enumerate(self.kept)]])]
    """
    executable = start(tmp_path, source)
    for number in range(8):  # more than there are blocks
        array = np.full((1, 50_000 * (1 + number)), number, np.float32)
        assert run(executable, request(array=array)) == [[1.0] * (number + 1)]
    assert executable._held == {0, 1, 2}
    run(executable, request(1))
    assert not executable._held
    executable.close()


def test_errors_have_the_texts_and_kinds_that_they_have_in_the_worker(tmp_path: Path) -> None:
    source = """
    class TritonPythonModel:
        def execute(self, requests):
            return self.inner(requests)

        def inner(self, requests):
            order = x_of(requests[0]).item()
            if order == 1:
                raise ValueError("deep inside")
            if order == 2:
                codes = (pb_utils.TritonError.UNAVAILABLE, pb_utils.TritonError.INVALID_ARG)
                return [pb_utils.InferenceResponse(error=pb_utils.TritonError("busy", code)) for code in codes]
            if order == 3:
                sys.exit(5)
            if order == 4:
                return []
            return [response([[1]], parameters={"large": 1 << 70})]
    """
    executable = start(tmp_path, source)
    pid = executable.pid
    raised = failure(executable, request(1))
    assert isinstance(raised, ModelFailed)
    text = "Failed to process the request(s) for model 'm_0', message: ValueError: deep inside"
    assert str(raised).startswith(f"{text}\n\nAt:\n  {tmp_path}/model.py")
    (note,) = raised.__notes__
    assert "in inner" in note
    assert note.endswith("ValueError: deep inside")
    unavailable, invalid = executable.execute_requests([request(2), request(2)])
    assert type(unavailable) is Unavailable
    assert type(invalid) is InvalidArgument
    assert str(invalid) == "busy"
    assert "SystemExit: 5" in str(failure(executable, request(3)))
    assert "Number of InferenceResponse objects do not match" in str(failure(executable, request(4)))
    assert "the response cannot be passed to the server" in str(failure(executable, request(5)))
    assert executable.pid == pid
    executable.close()


def test_a_request_that_cannot_be_sent_is_an_error_of_its_own(tmp_path: Path) -> None:
    executable = start(tmp_path, ECHO)
    unsendable = failure(executable, request(1, parameters={"large": 1 << 70}))
    assert "the requests cannot be passed to its process" in str(unsendable)
    assert run(executable, request(1)) == [[1]]
    executable.close()


def test_load_errors_keep_their_kind(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"model\.py: TritonPythonModel: expected a class, given no such name"):
        load(context(tmp_path, "class Other: pass"))
    source = "class TritonPythonModel:\n  def initialize(self, args): raise OSError('no weights')"
    with pytest.raises(ModelFailed, match="OSError: no weights"):
        load(context(tmp_path, source))
    with pytest.raises(ModelFailed, match="load: its process exited with code 9"):
        load(context(tmp_path, "os._exit(9)\nclass TritonPythonModel: pass"))


def test_finalize_runs_at_close_and_its_failure_is_raised(tmp_path: Path) -> None:
    source = """
    class TritonPythonModel:
        def execute(self, requests): ...

        def finalize(self):
            (pathlib.Path(__file__).parent / "finalized").touch()
            raise OSError("still open")
    """
    executable = start(tmp_path, source)
    with pytest.raises(ModelFailed, match="OSError: still open"):
        executable.close()
    assert (tmp_path / "finalized").exists()


def test_coroutines_run(tmp_path: Path) -> None:
    source = """
    class TritonPythonModel:
        async def execute(self, requests):
            async def one(request):
                await asyncio.sleep(0)
                return response(x_of(request) * 2)
            return await asyncio.gather(*[one(request) for request in requests])
    """
    executable = start(tmp_path, source)
    assert executable.is_async
    assert run(executable, request(1), request(2)) == [[2], [4]]
    executable.close()


def test_a_sample_has_no_sender(tmp_path: Path) -> None:
    source = """
    class TritonPythonModel:
        def execute(self, requests):
            requests[0].get_response_sender()
    """
    executable = start(tmp_path, source)
    with pytest.raises(ModelFailed, match="a warm-up sample has no caller"):
        executable.execute({"x": np.ones((1, 1), np.float32)}, None)
    assert not executable._session or not executable._session.flights
    executable.close()


def test_decoupled_models_answer_by_senders(tmp_path: Path) -> None:
    source = """
    class TritonPythonModel:
        def execute(self, requests):
            for request in requests:
                sender = request.get_response_sender()
                for number in range(3):
                    sender.send(response([[number]], parameters={"number": number}))
                sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
    """
    executable = start(tmp_path, source, DECOUPLED)
    assert executable.decoupled
    asked = request(1)
    assert run(executable, asked) == [None]
    answers = [outlet(executable, asked).next() for _ in range(4)]
    assert answers == [([0], False), ([1], False), ([2], False), (None, True)]
    executable.close()
