"""Triton python models that misbehave, in a real worker.

The caller gets a clear error, the log has the model's own lines, nothing is left behind, and other models are unharmed.
"""

from __future__ import annotations

import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from triton_models import TritonWorker, parameter

from watching import wait_for

_EXECUTE = "def execute(self, requests):\n    return []\n"
RAISING = {
    "import": "raise ValueError('at import')\n\n\nclass TritonPythonModel:\n    pass\n",
    "constructor": f"def __init__(self):\n    raise ValueError('at constructor')\n\n{_EXECUTE}",
    "initialize": f"def initialize(self, args):\n    raise ValueError('at initialize')\n\n{_EXECUTE}",
}


@pytest.mark.parametrize("place", RAISING)
def test_a_model_that_raises_while_it_loads(worker: TritonWorker, place: str) -> None:
    name = f"raises_at_{place}"
    worker.write(name, RAISING[place])
    status, text = worker.load(name)
    assert status == 500
    assert f"ValueError: at {place}" in text
    assert f"{name}/1/model.py(" in text
    assert worker.logged(f"ValueError: at {place}")
    assert not worker.modules(name)
    assert worker.infer(name, 1)[0] == 503


@pytest.mark.parametrize("place", ["import", "initialize"])
def test_a_model_that_ends_the_process_while_it_loads(worker: TritonWorker, place: str) -> None:
    name = f"exits_at_{place}"
    worker.write(name, RAISING[place].replace(f"raise ValueError('at {place}')", "sys.exit(3)"))
    status, text = worker.load(name)
    assert status == 500
    assert "SystemExit: 3" in text
    assert not worker.modules(name)


@pytest.mark.parametrize(
    ("name", "source", "words"),
    [
        (
            "imports_nothing",
            "import not_there_at_all\n\nclass TritonPythonModel:\n    pass",
            "No module named 'not_there_at_all'",
        ),
        ("no_syntax", "class TritonPythonModel:\n  def execute(self, requests)\n", "SyntaxError: expected ':'"),
        ("no_class", "TritonPythonModel = 5  # class TritonPythonModel", "expected a class, given a int"),
    ],
)
def test_a_model_that_cannot_be_imported(worker: TritonWorker, name: str, source: str, words: str) -> None:
    worker.write(name, source)
    status, text = worker.load(name)
    assert status in (400, 500)
    assert words in text
    assert not worker.modules(name)


def test_a_model_that_raises_in_execute(worker: TritonWorker) -> None:
    worker.serve(
        "raising",
        """
        def helper(self, value):
            raise ValueError(f"cannot take {value}")

        def execute(self, requests):
            return [self.helper(given(request)) for request in requests]
        """,
    )
    status, text = worker.infer("raising", 41)
    assert status == 500
    assert text.startswith(
        "Failed to process the request(s) for model 'raising_0', message: ValueError: cannot take 41\n\nAt:"
    )
    assert "model.py(" in text
    assert ": helper\n" in text
    (event, *_) = worker.logged("cannot take 41")
    assert event["model"] == "raising"
    assert event["level"] == "warning"
    assert 'raise ValueError(f"cannot take {value}")\nValueError: cannot take 41' in event["exception"]


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_every_kind_of_failure_is_logged_with_its_traceback(worker: TritonWorker, isolation: str) -> None:
    name = f"fails_twice_{isolation}"
    worker.serve(
        name,
        """
        def execute(self, requests):
            value = given(requests[0])
            if value == 1:
                raise ValueError("of the first kind")
            if value == 2:
                raise ValueError("of the second kind")
            requests[0].get_response_sender().send(respond(value), FINAL)
            raise ValueError("of the third kind")
        """,
        more=parameter("isolation", isolation),
    )
    for value in (1, 1, 2, 2):
        assert worker.infer(name, value)[0] == 500
    assert worker.infer(name, 3) == (200, [3])
    assert worker.infer(name, 3) == (200, [3])
    for kind in ("first", "second"):
        (event,) = [event for event in worker.logged(f"of the {kind} kind") if event["model"] == name]
        assert event["level"] == "warning"
        assert f'raise ValueError("of the {kind} kind")' in event["exception"]
    wait_for(lambda: [event for event in worker.logged("of the third kind") if event["model"] == name])
    (event,) = [event for event in worker.logged("of the third kind") if event["model"] == name]
    assert event["level"] == "warning"
    assert 'raise ValueError("of the third kind")' in event["event"]


def test_a_model_that_raises_in_finalize(worker: TritonWorker) -> None:
    worker.serve(
        "no_end",
        """
        def execute(self, requests):
            return [respond(1) for _ in requests]

        def finalize(self):
            raise ValueError("at finalize")
        """,
    )
    assert worker.infer("no_end", 1) == (200, [1])
    assert worker.unload("no_end")[0] == 200
    wait_for(lambda: worker.logged("ValueError: at finalize"))
    wait_for(lambda: not worker.modules("no_end"))


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("return []", "InferenceRequest(s) size is:1, and InferenceResponse(s) size is:0"),
        ("return [respond(1), respond(2)]", "InferenceRequest(s) size is:1, and InferenceResponse(s) size is:2"),
        ("return respond(1)", "Expected a list in the execute return"),
        ("return ['text']", "Expected an 'InferenceResponse' object in the execute function return list"),
        ("return [None]", "found None for a request whose response sender was not used"),
        ("return None", "execute returned None, and the response sender of the request was not used"),
        ("sys.exit(4)", "SystemExit: 4"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("raise GeneratorExit('odd')", "GeneratorExit: odd"),
        ("import not_there_at_all", "No module named 'not_there_at_all'"),
        ("return [pb_utils.InferenceResponse([pb_utils.Tensor('OUT', np.array([1+2j]))])]", "dtype is not supported"),
        ("def recurse(): recurse()\n    recurse()", "RecursionError"),
    ],
)
@pytest.mark.parametrize("inline", ["true", "false"])
def test_a_model_that_answers_wrongly(worker: TritonWorker, body: str, words: str, inline: str) -> None:
    """On the loop's thread, and on one of its own."""
    worker.serve("wrong", f"def execute(self, requests):\n    {body}\n", more=parameter("inline", inline))
    status, text = worker.infer("wrong", 1)
    assert status == 500
    assert words in text
    assert worker.is_fine()
    assert worker.infer("wrong", 1)[0] == 500


def test_a_failure_of_one_request_is_not_that_of_its_neighbours(worker: TritonWorker) -> None:
    """Responses of one run: each its own."""
    worker.serve(
        "mixed",
        """
        def execute(self, requests):
            return [
                respond(given(request)) if given(request) else pb_utils.InferenceResponse(
                    error=pb_utils.TritonError("zero", pb_utils.TritonError.INVALID_ARG)
                )
                for request in requests
            ]
        """,
    )
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda value: worker.infer("mixed", value % 3), range(24)))
    assert [status for status, _ in found] == [400, 200, 200] * 8


def test_a_model_that_blocks_is_replaced_after_its_limit(worker: TritonWorker) -> None:
    directory = worker.serve(
        "blocks",
        """
        def initialize(self, args):
            self.gate = os.path.join(args["model_repository"], "open")

        def execute(self, requests):
            if given(requests[0]):
                wait_for(self.gate)
            return [respond(7) for _ in requests]
        """,
        more=parameter("execution_timeout_ms", "100") + parameter("inline", "false"),
    )
    status, text = worker.infer("blocks", 1)
    assert status == 500
    assert "execution_timeout_ms (100)" in text
    wait_for(lambda: worker.infer("blocks", 0) == (200, [7]))
    (directory / "open").touch()


def test_a_model_that_blocks_without_a_limit_harms_no_other(worker: TritonWorker) -> None:
    directory = worker.serve(
        "waits",
        """
        def initialize(self, args):
            self.folder = args["model_repository"]

        def execute(self, requests):
            open(os.path.join(self.folder, "entered"), "w").close()
            wait_for(os.path.join(self.folder, "open"))
            return [respond(7) for _ in requests]
        """,
        more=parameter("inline", "false"),
    )
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(worker.infer, "waits", 1)
        wait_for((directory / "entered").exists)
        assert all(worker.is_fine() for _ in range(20))
        assert worker.in_flight() == 1
        (directory / "open").touch()
        assert waiting.result() == (200, [7])


@pytest.mark.parametrize("decoupled", [False, True])
def test_a_model_that_keeps_a_request_and_never_answers(worker: TritonWorker, decoupled: bool) -> None:
    worker.serve(
        "keeps",
        """
        def initialize(self, args):
            self.kept = []

        def execute(self, requests):
            self.kept += [request.get_response_sender() for request in requests]
        """,
        decoupled=decoupled,
        more=parameter("execution_timeout_ms", "100"),
    )
    text = worker.stream("keeps", 1)[0] if decoupled else worker.infer("keeps", 1)[1]
    assert "execution_timeout_ms (100)" in text


def test_a_kept_request_is_answered_when_its_model_goes(worker: TritonWorker) -> None:
    """Without a limit: unloading ends the wait."""
    worker.serve(
        "hoards",
        """
        def initialize(self, args):
            self.kept = []

        def execute(self, requests):
            self.kept += [request.get_response_sender() for request in requests]
            pb_utils.Logger.log_info("hoarded")
        """,
    )
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(worker.infer, "hoards", 1)
        wait_for(lambda: worker.logged("hoarded"))
        assert worker.unload("hoards")[0] == 200
        status, text = waiting.result()
    assert status in (500, 503), text


def test_a_sender_that_is_let_go_answers_with_an_error(worker: TritonWorker) -> None:
    worker.serve("drops", "def execute(self, requests):\n    [request.get_response_sender() for request in requests]\n")
    status, text = worker.infer("drops", 1)
    assert status == 500
    assert "the response sender was deleted before the last response was sent" in text


@pytest.mark.parametrize("isolation", ["thread", "process"])
@pytest.mark.parametrize("decoupled", [False, True])
def test_a_sender_that_is_given_no_response_fails_its_request(
    worker: TritonWorker, decoupled: bool, isolation: str
) -> None:
    worker.serve(
        "sends_text",
        """
        def execute(self, requests):
            for request in requests:
                request.get_response_sender().send("text", flags=FINAL)
        """,
        decoupled=decoupled,
        more=parameter("isolation", isolation),
    )
    text = worker.stream("sends_text", 1)[0] if decoupled else worker.infer("sends_text", 1)[1]
    assert "TypeError: send: expected an InferenceResponse, given a str" in text


def test_a_stream_that_is_let_go_ends(worker: TritonWorker) -> None:
    worker.serve(
        "drops_stream",
        """
        def execute(self, requests):
            for request in requests:
                if given(request):
                    request.get_response_sender().send(respond(5))
        """,
        decoupled=True,
    )
    assert worker.stream("drops_stream", 1) == [[5]]
    assert worker.stream("drops_stream", 0) == []


def test_a_thread_that_sends_after_its_model_is_gone(worker: TritonWorker) -> None:
    directory = worker.serve(
        "late",
        """
        def initialize(self, args):
            self.folder = args["model_repository"]

        def execute(self, requests):
            for request in requests:
                threading.Thread(
                    target=self.later,
                    args=(request.get_response_sender(), os.path, time.sleep, open, FINAL, respond(1)),
                ).start()

        def later(self, sender, path, sleep, open, final, response):
            sender.send(response)
            while not path.exists(path.join(self.folder, "open")):
                sleep(0.005)
            try:
                sender.send(response, final)
            finally:
                open(path.join(self.folder, "ended"), "w").close()
        """,
        decoupled=True,
    )
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(worker.stream, "late", 1)
        wait_for(lambda: worker.in_flight() == 1)
        assert worker.unload("late")[0] == 200
        found = waiting.result()
    assert found[0] == [1]
    assert "unload" in found[1]
    (directory / "open").touch()
    wait_for((directory / "ended").exists)


def test_a_model_that_forks(worker: TritonWorker) -> None:
    worker.serve(
        "forks",
        """
        def execute(self, requests):
            child = os.fork()
            if child == 0:
                os._exit(7)
            _, status = os.waitpid(child, 0)
            return [respond(os.waitstatus_to_exitcode(status)) for _ in requests]
        """,
    )
    assert worker.infer("forks", 1) == (200, [7])


def test_a_model_with_processes_of_its_own(worker: TritonWorker) -> None:
    worker.serve(
        "processes",
        """
        def execute(self, requests):
            import multiprocessing

            context = multiprocessing.get_context("fork")
            reader, writer = context.Pipe(False)
            child = context.Process(target=writer.send, args=(21,))
            child.start()
            value = reader.recv()
            child.join()
            reader.close()
            writer.close()
            child.close()
            return [respond(value * 2) for _ in requests]
        """,
        more=parameter("inline", "false"),
    )
    assert worker.infer("processes", 1) == (200, [42])


def test_a_client_that_leaves_a_stream(worker: TritonWorker) -> None:
    directory = worker.serve(
        "endless",
        """
        def initialize(self, args):
            self.folder = args["model_repository"]

        def execute(self, requests):
            sender = requests[0].get_response_sender()
            while not sender.is_cancelled():
                sender.send(respond(1))
            open(os.path.join(self.folder, "noticed"), "w").close()
            sender.send(flags=FINAL)
        """,
        decoupled=True,
    )
    with grpc.insecure_channel(worker.server.grpc_url) as channel:
        responses = worker.responses(channel, "endless", [1])
        assert [next(responses) for _ in range(40)] == [[1]] * 40
        responses.close()
    wait_for((directory / "noticed").exists)


def test_a_client_that_leaves_while_its_model_runs(worker: TritonWorker) -> None:
    directory = worker.serve(
        "slow_one",
        """
        def initialize(self, args):
            self.folder = args["model_repository"]

        def execute(self, requests):
            open(os.path.join(self.folder, "entered"), "w").close()
            while not requests[0].is_cancelled():
                time.sleep(0.005)
            open(os.path.join(self.folder, "noticed"), "w").close()
            return [respond(1) for _ in requests]
        """,
        more=parameter("inline", "false"),
    )
    body = b'{"inputs":[{"name":"IN","datatype":"INT32","shape":[1],"data":[1]}]}'
    host, _, port = worker.server.http_url.partition(":")
    with socket.create_connection((host, int(port))) as connection:
        head = f"POST /v2/models/slow_one/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        connection.sendall(head.encode() + body)
        wait_for((directory / "entered").exists)
    wait_for((directory / "noticed").exists)


def test_loading_and_unloading_leaves_nothing(worker: TritonWorker) -> None:
    worker.serve(
        "often",
        """
        async def execute(self, requests):
            return [respond(given(request)) for request in requests]
        """,
    )
    worker.unload("often")
    wait_for(lambda: not worker.threads("often"))
    files = worker.inside()["files"]
    for value in range(5):
        assert worker.load("often")[0] == 200
        assert worker.infer("often", value) == (200, [value])
        assert worker.unload("often")[0] == 200
    wait_for(lambda: not worker.threads("often"))
    assert not worker.modules("often")
    wait_for(lambda: worker.inside()["files"] <= files)


def test_many_callers_while_a_model_is_reloaded(worker: TritonWorker) -> None:
    """Each is answered: by the model, or told that it is not there."""
    worker.serve("reloaded")
    over = threading.Event()

    def ask() -> set[int]:
        found: set[int] = set()
        while not over.is_set():
            found.add(worker.infer("reloaded", 3)[0])
        return found

    with ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(ask) for _ in range(4)]
        try:
            for _ in range(4):
                worker.unload("reloaded")
                assert worker.load("reloaded")[0] == 200
        finally:
            over.set()
        assert set().union(*(each.result() for each in asked)) <= {200, 404, 503}


def test_the_file_that_names_the_class_elsewhere(worker: TritonWorker, tmp_path: Path) -> None:
    """A model.py may import the class; and modules beside it are its own."""
    directory = worker.write("imported", "class TritonPythonModel:\n    pass")
    (directory / "1" / "model.py").write_text("from implementation import TritonPythonModel\n")
    (directory / "1" / "implementation.py").write_text(
        "import triton_python_backend_utils as pb_utils\n\n\nclass TritonPythonModel:\n"
        "    def execute(self, requests):\n"
        "        tensors = [pb_utils.Tensor('OUT', request.inputs()[0].as_numpy()) for request in requests]\n"
        "        return [pb_utils.InferenceResponse([tensor]) for tensor in tensors]\n"
    )
    assert worker.load("imported")[0] == 200
    assert worker.infer("imported", 9) == (200, [9])
