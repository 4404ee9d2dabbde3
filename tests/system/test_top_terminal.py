"""``isochrone top`` in a real terminal against real processes: keys, sizes, failures, and the terminal afterwards."""

from __future__ import annotations

import contextlib
import re
import signal
import socket
import threading
import time
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import msgspec
import psutil
import pytest
from control_thread import KEYS, ControlThread
from terminal_run import TerminalRun, terminal_run

from gateway_process import GatewayProcess, StartGateway
from isochrone.control.api.messages import GatewayStatus, ModelStatus, Status, StoreState, WorkerStatus
from isochrone.control.state.process_records import GatewayRecord, WorkerRecord
from isochrone.control.state.records import Assignment, EpochRecord
from sample_models import write_models
from server_process import ServerProcess, StartServer

MODEL = "identity_fp32"
BODY = b'{"inputs": [{"name": "IN", "shape": [1], "datatype": "FP32", "data": [1.0]}]}'


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory, server_factory: StartServer) -> Iterator[ServerProcess]:
    repository = write_models(tmp_path_factory.mktemp("top") / "models", MODEL, "identity_int32")
    with server_factory(repository) as server:
        yield server


@pytest.fixture(scope="module")
def gateway(worker: ServerProcess, gateway_factory: StartGateway) -> Iterator[GatewayProcess]:
    with gateway_factory([worker]) as gateway:
        yield gateway


@pytest.fixture(scope="module")
def load(gateway: GatewayProcess) -> Iterator[None]:
    """Requests to one model through the gateway, a hundred a second at most."""
    over = threading.Event()

    def send() -> None:
        url = f"http://{gateway.http_url}/v2/models/{MODEL}/infer"
        while not over.wait(0.01):
            with urllib.request.urlopen(urllib.request.Request(url, BODY), timeout=60) as answer:
                answer.read()

    thread = threading.Thread(target=send)
    thread.start()
    yield
    over.set()
    thread.join()


def page(server: ServerProcess) -> str:
    return f"http://127.0.0.1:{server.metrics_port}"


def is_left_as_it_was(run: TerminalRun) -> bool:
    """The usual screen, with a cursor, and lines that wrap."""
    return (run.modes["?1049"], run.modes["?25"], run.modes["?7"]) == (False, True, True)


@pytest.mark.usefixtures("load")
def test_one_worker_is_shown_sorted_filtered_and_in_detail(worker: ServerProcess) -> None:
    with terminal_run("top", page(worker), "--interval", "0.2") as run:
        before = run.terminal_modes()
        screen = run.wait_for(rf"worker 127.0.0.1:{worker.metrics_port}", rf"{MODEL} +1 +[1-9]\d*", "▼req/s", "[▁-█]")
        assert run.modes["?1049"]
        assert not run.modes["?25"]
        lines = screen.splitlines()
        assert [line.split()[0] for line in lines[4:6]] == [MODEL, "identity_int32"], "the busiest first"
        assert {len(line) for line in lines} == {80}
        # Another order; the selection stays on its line.
        run.press("n")
        run.wait_for("▲model")
        run.press("/int")
        run.wait_for("filter: int_")
        run.wait_without(MODEL)
        run.press("\x1b")
        run.wait_for(MODEL)
        run.press("?")
        run.wait_for("pause and continue", "99th percentile")
        run.press("\x1b")
        run.wait_for("▲model")
        run.press("\x1b[H\r")
        run.wait_for(rf"model {MODEL}", r"req/s +lowest", rf"127.0.0.1:{worker.metrics_port} +[1-9]")
        run.press("\x1b")
        run.press("\t")
        run.wait_for(rf"127.0.0.1:{worker.metrics_port} .*%.*M")
        run.press("p")
        run.wait_for("PAUSED")
        run.resize(132, 40)
        # The last line is the last to come.
        screen = run.wait_for(r"(?m)^q quit.{126}$", "PAUSED")
        assert {len(line) for line in screen.splitlines()} == {132}
        assert len(screen.splitlines()) == 40
        run.press("q")
        assert run.end() == 0
        assert is_left_as_it_was(run)
        assert run.terminal_modes() == before


@pytest.mark.long
@pytest.mark.usefixtures("load")
def test_one_gateway_is_shown_with_its_workers(worker: ServerProcess, gateway: GatewayProcess) -> None:
    with terminal_run("top", f"127.0.0.1:{gateway.metrics_port}", "--interval", "0.2") as run:
        run.wait_for(rf"gateway 127.0.0.1:{gateway.metrics_port}", rf"{MODEL} .*[1-9]")
        run.press("2")
        run.wait_for(rf"{worker.http_url}")
        run.press("3")
        run.wait_for(rf"127.0.0.1:{gateway.metrics_port} .*[1-9]\d* .*%.*M")
        run.press("q")
        assert run.end() == 0


@pytest.mark.parametrize(
    ("number", "status"), [(None, 130), (signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_signal_leaves_the_terminal_as_it_was(
    worker: ServerProcess, number: signal.Signals | None, status: int
) -> None:
    with terminal_run("top", page(worker)) as run:
        before = run.terminal_modes()
        run.wait_for(MODEL)
        assert run.terminal_modes() != before
        if number is None:
            run.press("\x03")
        else:
            run.process.send_signal(number)
        assert run.end() == status
        assert is_left_as_it_was(run)
        assert run.terminal_modes() == before
        assert "Traceback" not in run.written


@pytest.mark.long
def test_ctrl_z_gives_the_terminal_back_until_it_goes_on(worker: ServerProcess) -> None:
    with terminal_run("top", page(worker), "--interval", "0.2") as run:
        before = run.terminal_modes()
        run.wait_for(MODEL)
        # The kernel ignores a Ctrl-Z in a session that nobody could continue; the signal itself it does not.
        run.process.send_signal(signal.SIGTSTP)
        stopped = psutil.Process(run.process.pid)
        while stopped.status() != psutil.STATUS_STOPPED:
            assert run.process.poll() is None
            time.sleep(0.01)
        run.lines()
        assert is_left_as_it_was(run)
        assert run.terminal_modes() == before
        run.process.send_signal(signal.SIGCONT)
        run.wait_for(MODEL, "q quit")
        assert run.modes["?1049"]
        run.press("q")
        assert run.end() == 0
        assert run.terminal_modes() == before


@pytest.mark.long
def test_an_error_is_said_on_the_usual_screen(worker: ServerProcess) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        with terminal_run("top", f"http://127.0.0.1:{port}") as run:
            before = run.terminal_modes()
            assert run.end() == 1
            assert is_left_as_it_was(run)
            assert run.terminal_modes() == before
            assert f"http://127.0.0.1:{port}/metrics cannot be read" in run.written
    with terminal_run("top", f"http://{worker.http_url}/v2") as run:
        assert run.end() == 1
        assert "has no figures of a worker or gateway" in run.written


def test_a_counted_run_leaves_its_last_figures(worker: ServerProcess) -> None:
    with terminal_run("top", page(worker), "--count", "2", "--interval", "0.1") as run:
        assert run.end() == 0
        after = run.written.rpartition("\x1b[?1049l")[2]
        assert re.search(rf"model {MODEL}  .* req/s", after)


@pytest.mark.long
@pytest.mark.usefixtures("load")
def test_a_fleet_is_shown_and_stays_when_its_controller_goes(
    tmp_path: Path, worker: ServerProcess, gateway: GatewayProcess
) -> None:
    control, is_stopped = ControlThread(tmp_path), False
    control.start()
    try:
        control.write(KEYS.epoch, EpochRecord(3, {MODEL: Assignment("1", pools=("cpu",))}))
        record = WorkerRecord("cpu-1", "127.0.0.1", worker.http_port, worker.grpc_port, worker.metrics_port, "cpu")
        control.write(KEYS.worker("cpu-1"), record)
        control.write(
            KEYS.gateway("gw-1"), GatewayRecord("gw-1", "127.0.0.1", gateway.http_port, gateway.metrics_port, epoch=3)
        )
        with terminal_run("top", "--api", control.url, "--interval", "0.2") as run:
            before = run.terminal_modes()
            run.wait_for("fleet plant  epoch 3", rf"{MODEL} +1 .*[1-9]", "2 workers 1", "3 gateways 1")
            run.press("2\r")
            run.wait_for("worker cpu-1", "pool +cpu")
            run.press("G")
            run.wait_for(rf"{MODEL} +[1-9]")
            run.press("\x1b")
            run.wait_for("q quit")
            control.stop()
            is_stopped = True
            run.wait_for(r"no update since \d\d:\d\d:\d\d .*no controller answers", "cpu-1")
            run.press("1")
            run.wait_for(MODEL, "no update since")
            run.press("q")
            assert run.end() == 0
            assert run.terminal_modes() == before
    finally:
        if not is_stopped:
            control.stop()


class _Controller(BaseHTTPRequestHandler):
    """Answers with one status, one request per connection; holds its answers while it is told to."""

    go_on = threading.Event()

    def do_GET(self) -> None:
        self.go_on.wait(100)
        status = Status(
            "plant",
            *(1, 3, "c1"),
            StoreState("sqlite:x", True, "", 1),
            (ModelStatus("detector", "1", "", "", None, (), (), "serving", ""),),
            (WorkerStatus("cpu-1", "h:1", "", "cpu", "", "", "isochrone", True, 1.0),),
            (GatewayStatus("gw-1", "h:1", "", True, 3, False, 0.0),),
            (),
        )
        content = msgspec.json.encode(status)
        self.send_response(200)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        with contextlib.suppress(OSError):
            self.wfile.write(content)

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@contextlib.contextmanager
def a_controller(port: int = 0) -> Iterator[int]:
    with ThreadingHTTPServer(("127.0.0.1", port), _Controller) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.long
def test_a_controller_that_hangs_delays_no_key() -> None:
    _Controller.go_on.clear()
    try:
        with a_controller() as port, terminal_run("top", "--api", f"127.0.0.1:{port}", "--interval", "0.2") as run:
            run.wait_for("waiting for the first update")
            run.press("?")
            run.wait_for("pause and continue")
            run.press("\x1b2")
            run.wait_for("no figures yet")
            _Controller.go_on.set()
            run.wait_for("fleet plant", "cpu-1 .*draining", "1 line needs attention")
            _Controller.go_on.clear()
            run.wait_for(r"no update for \d")
            # It ends although a call is under way.
            run.press("q")
            assert run.end() == 0
            _Controller.go_on.set()
    finally:
        _Controller.go_on.set()


@pytest.mark.long
def test_a_controller_that_returns_is_shown_again() -> None:
    _Controller.go_on.set()
    with contextlib.ExitStack() as stack:
        with a_controller() as port:
            run = stack.enter_context(terminal_run("top", "--api", f"127.0.0.1:{port}", "--interval", "0.2"))
            run.wait_for("fleet plant", "detector")
        run.wait_for("no update since .*no controller answers", "detector")
        with a_controller(port):
            run.wait_without("no update since")
            run.wait_for("fleet plant", "detector")
            run.press("q")
            assert run.end() == 0


def test_a_terminal_without_a_screen_gets_plain_lines(worker: ServerProcess) -> None:
    environment = {"TERM": "dumb"}
    with terminal_run("top", page(worker), "--count", "1", "--interval", "0.1", environment=environment) as run:
        assert run.end() == 0
        assert "\x1b" not in run.written
        assert re.search(rf"model {MODEL}  .* req/s", run.written)
