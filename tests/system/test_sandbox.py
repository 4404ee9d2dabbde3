"""Hostile python models in a real worker with ``--sandbox``: each is contained, and a neighbour answers all the time.

The model ``hostile`` runs the source that it is sent. What it may not do raises there, and the caller sees why.
"""

from __future__ import annotations

import json
import os
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from isochrone.secure.sandbox.support import present_support
from sample_models import write_config, write_python
from server_process import ServerProcess, start_server
from watching import wait_for

pytestmark = pytest.mark.skipif(bool(present_support().missing()), reason="the kernel cannot confine models")

_SECRET = "hunter2-of-the-sandbox"
_CONFIG = """
backend: "python"
input { name: "IN" data_type: TYPE_STRING dims: [ 1 ] }
output { name: "OUT" data_type: TYPE_STRING dims: [ 1 ] }
"""
#: An operator's flags decide, and not this.
_WITHOUT_ISOLATION = 'parameters { key: "isolation" value { string_value: "thread" } }'
_OBEDIENT = """
import ctypes, os, socket, sys
import numpy as np

class Model:
    def infer(self, inputs):
        scope = {"__file__": __file__}
        exec(inputs["IN"].flat[0].decode(), scope)
        return {"OUT": np.array([str(scope.get("result")).encode()], object)}
"""
_TRITON = """
import json, os
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        try:
            open("/etc/passwd").close()
            raise AssertionError("it could read while its configuration was completed")
        except PermissionError:
            return config

    def execute(self, requests):
        responses = []
        for request in requests:
            scope = {"pb_utils": pb_utils}
            exec(pb_utils.get_input_tensor_by_name(request, "IN").as_numpy().flat[0].decode(), scope)
            result = np.array([str(scope.get("result")).encode()], object)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", result)]))
        return responses
"""
_MODELS = {
    "hostile": (_CONFIG + _WITHOUT_ISOLATION, _OBEDIENT),
    "neighbour": (_CONFIG, _OBEDIENT),
    "triton": (_CONFIG, _TRITON),
    "web": (_CONFIG, _OBEDIENT),
    "tool": (_CONFIG, _OBEDIENT),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    repository = tmp_path_factory.mktemp("sandbox") / "models"
    for name, (config, source) in _MODELS.items():
        write_config(repository / name, config)
        write_python(repository / name, source)
    (repository / "neighbour" / "1" / "weights").write_text(_SECRET)
    os.environ["ISOCHRONE_API_TOKEN"] = _SECRET
    try:
        with start_server(
            repository,
            *("--sandbox", "--sandbox-memory", "2GiB", "--sandbox-memory", "hostile=512MiB"),
            *("--sandbox-allow", "network=web", "--sandbox-allow", "processes=tool"),
            *("--model-control-mode", "explicit", "--load-model", "*"),
        ) as server:
            yield server
    finally:
        del os.environ["ISOCHRONE_API_TOKEN"]


class Failed(Exception):
    """The server's error."""


def run(server: ServerProcess, model: str, source: str) -> str:
    """What the source leaves as ``result``."""
    tensor = {"name": "IN", "datatype": "BYTES", "shape": [1], "data": [source]}
    body = json.dumps({"inputs": [tensor]}).encode()
    try:
        with urllib.request.urlopen(f"http://{server.http_url}/v2/models/{model}/infer", body, timeout=120) as answer:
            decoded: dict[str, Any] = json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            raise Failed(json.load(error)["error"]) from None
    return str(decoded["outputs"][0]["data"][0])


def pid_of(server: ServerProcess, model: str) -> int:
    return int(run(server, model, "import os; result = os.getpid()"))


@contextmanager
def neighbour_answers(server: ServerProcess) -> Iterator[None]:
    """While the block runs, every request of the neighbour is answered, by the same process."""
    before = pid_of(server, "neighbour")
    answers: list[str] = []
    over = threading.Event()

    def ask() -> None:
        while True:
            try:
                answers.append(run(server, "neighbour", "import os; result = os.getpid()"))
            except Exception as error:
                answers.append(repr(error))
            if over.is_set():
                return

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    assert set(answers) == {str(before)}


def _syscall(number: int, *arguments: object) -> str:
    listed = ", ".join(map(str, (number, *arguments)))
    return (
        f"import ctypes, os; c = ctypes.CDLL(None, use_errno=True); r = c.syscall({listed})\n"
        "if r < 0: raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))"
    )


#: Each raises PermissionError in the model.
_FORBIDDEN = {
    "a file of the system": 'open("/etc/passwd")',
    "a directory": 'import os; os.listdir("/tmp")',
    "the root": 'import os; os.listdir("/")',
    "the weights of another model": 'open(__file__.replace("hostile", "neighbour")[:-8] + "weights")',
    "the repository": "import os, pathlib; os.listdir(pathlib.Path(__file__).parents[2])",
    "a link to elsewhere": 'import os; os.symlink("/etc/passwd", "/dev/shm/l"); open("/dev/shm/l")',
    "the environment of the worker": 'import os; open(f"/proc/{os.getppid()}/environ", "rb").read()',
    "the memory of the worker": 'import os; open(f"/proc/{os.getppid()}/mem", "r+b")',
    "the files of the worker": 'import os; os.listdir(f"/proc/{os.getppid()}/fd")',
    "the command lines of others": 'open("/proc/1/cmdline")',
    "TCP": "import socket; socket.socket()",
    "UDP": "import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM)",
    "a Unix socket": "import socket; socket.socket(socket.AF_UNIX)",
    "netlink": "import socket; socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)",
    "datagrams between sockets": "import socket; socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)",
    "a copy of itself": "import os; os.fork()",
    "a shell": 'import os; os.execv("/bin/sh", ["sh"])',
    "a program": 'import os; os.posix_spawn("/bin/true", ["true"], {})',
    "a session of its own": "import os; os.setsid()",
    "its own directory": 'open(__file__, "a")',
    "a file beside it": 'open(__file__ + "c", "w")',
    "another temporary directory": 'open("/tmp/isochrone-sandbox-test", "w")',
    "the rights of its file": "import os; os.chmod(__file__, 0o777)",
    "a shorter file": "import os; os.truncate(__file__, 0)",
    "the priority of its user": "import os; os.setpriority(os.PRIO_USER, 0, 19)",
    "names of files in a directory": "import ctypes, os; c = ctypes.CDLL(None, use_errno=True)\n"
    'if c.inotify_add_watch(c.inotify_init(), b"/", 0x100) < 0: raise OSError(ctypes.get_errno(), "watch")',
    "the end of the worker": "import os; os.kill(os.getppid(), 9)",
    "the end of everything": "import os; os.kill(-1, 9)",
    "the limits of the worker": "import os, resource; resource.prlimit(os.getppid(), resource.RLIMIT_NOFILE, (3, 3))",
    "memory that no limit counts": "import mmap; mmap.mmap(-1, 1 << 20)",
    "memory with a name": 'import os; os.memfd_create("m")',
    "debugging the worker": "import os\n" + _syscall(101, 16, "os.getppid()", 0, 0),
    "the memory of another process": "import os\n" + _syscall(310, "os.getppid()", 0, 0, 0, 0, 0),
    "a namespace": _syscall(272, 0x10000000),
    "a mount": "import ctypes, os; c = ctypes.CDLL(None, use_errno=True)\n"
    'if c.mount(b"none", b"/dev/shm", b"tmpfs", 0, None): raise OSError(ctypes.get_errno(), "mount")',
    "io_uring": _syscall(425, 1, 0),
    "dumps of its memory": "import ctypes\nif ctypes.CDLL(None).prctl(4, 1, 0, 0, 0): raise PermissionError()",
}
_DENIED = r"(PermissionError|Read-only file system).*docs/sandbox\.md"
_ONLY_X86 = {"debugging the worker", "the memory of another process", "a namespace"}


@pytest.mark.parametrize("what", _FORBIDDEN)
def test_a_model_may_not_reach(server: ServerProcess, what: str) -> None:
    if what in _ONLY_X86 and os.uname().machine != "x86_64":
        pytest.skip("written with numbers of x86_64")
    with neighbour_answers(server), pytest.raises(Failed, match=_DENIED):
        run(server, "hostile", _FORBIDDEN[what])
    assert server.process.poll() is None


def test_raising_its_limits_does_not_work(server: ServerProcess) -> None:
    with pytest.raises(Failed, match="ValueError: not allowed to raise maximum limit"):
        run(server, "hostile", "import resource; resource.setrlimit(resource.RLIMIT_DATA, (1 << 40, 1 << 40))")


def test_it_cannot_become_root(server: ServerProcess) -> None:
    with pytest.raises(Failed, match=r"PermissionError|Invalid argument"):
        run(server, "hostile", "import os; os.setuid(0)")
    if os.geteuid() == 0:
        assert run(server, "hostile", "import os; result = os.getuid()") != run(
            server, "neighbour", "import os; result = os.getuid()"
        )


def test_calls_of_another_abi_do_not_exist(server: ServerProcess) -> None:
    """x32: calls of x86_64 with a bit added, which a filter by number alone would not know."""
    with pytest.raises(Failed, match="Function not implemented"):
        run(server, "hostile", _syscall(0x40000000 | 41, 2, 1, 0))


def test_the_worker_s_own_port_cannot_be_reached(server: ServerProcess) -> None:
    with pytest.raises(Failed, match="PermissionError"):
        run(server, "hostile", f'import socket; socket.create_connection(("127.0.0.1", {server.http_port}))')


def test_another_model_s_process_cannot_be_ended(server: ServerProcess) -> None:
    for number in (9, 15, 11, 19):
        with neighbour_answers(server), pytest.raises(Failed, match="PermissionError"):
            run(server, "hostile", f"import os; os.kill({pid_of(server, 'neighbour')}, {number})")


def test_memory_ends_at_the_limit(server: ServerProcess) -> None:
    with neighbour_answers(server), pytest.raises(Failed, match=r"MemoryError.*536870912 bytes: --sandbox-memory"):
        run(server, "hostile", "result = []\nwhile True: result.append(bytearray(16 << 20))")
    # The limit is the model's: another one may have as much.
    assert run(server, "neighbour", "result = len(bytearray(768 << 20))") == str(768 << 20)


def test_threads_end_at_a_limit(server: ServerProcess) -> None:
    source = (
        "import threading\nthreading.stack_size(65536)\nwait = threading.Event()\nstarted = 0\n"
        "try:\n    while started < 100_000:\n"
        "        threading.Thread(target=wait.wait, daemon=True).start(); started += 1\n"
        "except RuntimeError as error:\n    result = str(error)\nfinally:\n    wait.set()"
    )
    with neighbour_answers(server):
        assert run(server, "hostile", source) == "can't start new thread"


def test_temporary_files_end_at_a_limit_and_are_nobody_else_s(server: ServerProcess) -> None:
    fill = (
        "import tempfile\nfile = tempfile.TemporaryFile(buffering=0)\ntotal = 0\n"
        "try:\n    while True: total += file.write(bytes(1 << 20))\n"
        "except OSError as error:\n    result = f'{error.errno} {total >> 20}'"
    )
    with neighbour_answers(server):
        assert run(server, "hostile", fill) == "28 64"
    run(server, "neighbour", 'open("/dev/shm/mine", "w").write("x")')
    assert "mine" not in run(server, "hostile", 'import os; result = os.listdir("/dev/shm")')
    assert not Path("/dev/shm/mine").exists()


def test_a_crash_costs_one_model_one_call(server: ServerProcess) -> None:
    before = pid_of(server, "hostile")
    with neighbour_answers(server):
        with pytest.raises(Failed, match="its process was killed by SIGSEGV"):
            run(server, "hostile", "import ctypes; ctypes.string_at(0)")
        wait_for(lambda: _pid_or_none(server) not in (None, before))


def _pid_or_none(server: ServerProcess) -> int | None:
    try:
        return pid_of(server, "hostile")
    except Failed:
        return None


def test_no_secret_of_the_worker_is_in_reach(server: ServerProcess) -> None:
    found = run(server, "hostile", "import os; result = dict(os.environ)")
    assert _SECRET not in found
    assert "ISOCHRONE" not in found
    children = psutil.Process(server.pid).children(recursive=True)
    assert len(children) == len(_MODELS)
    assert not any(_SECRET in word for child in children for word in child.cmdline())
    with suppress(psutil.AccessDenied):  # it is undumpable: only root may look
        assert not any(_SECRET in child.environ().values() for child in children)


def test_its_descriptors_are_the_channel_and_nothing_of_the_worker(server: ServerProcess) -> None:
    if os.geteuid() != 0:
        pytest.skip("the directory of descriptors of an undumpable process is root's")
    links = run(
        server,
        "hostile",
        'import os; result = "\\n".join(sorted({os.readlink(f"/proc/self/fd/{n}").split(":")[0].split("(")[0].strip()'
        ' for n in os.listdir("/proc/self/fd") if os.path.islink(f"/proc/self/fd/{n}")}))',
    )
    kinds = {"/proc" if kind.startswith("/proc/") else kind for kind in links.splitlines()}
    assert kinds <= {"pipe", "socket", "/dev/null", "/proc", "/memfd"}


def test_output_cannot_fill_the_log_or_change_it(server: ServerProcess) -> None:
    before = server.log_path.stat().st_size
    with neighbour_answers(server):
        run(server, "hostile", 'for _ in range(64): print("x" * (1 << 20))')
    assert server.log_path.stat().st_size - before < 4 << 20
    with pytest.raises(Failed, match="Invalid argument"):
        run(server, "hostile", "import os; os.ftruncate(2, 0)")


def test_a_process_of_its_own_whatever_the_configuration_says(server: ServerProcess) -> None:
    assert pid_of(server, "hostile") != server.pid
    assert run(server, "hostile", "import os; result = os.getppid()") == str(server.pid)


def test_models_of_triton_s_kind_are_confined_too(server: ServerProcess) -> None:
    assert pid_of(server, "triton") != server.pid
    with pytest.raises(Failed, match=r"PermissionError.*docs/sandbox\.md"):
        run(server, "triton", 'open("/etc/passwd")')
    for call in ('load_model("hostile")', 'unload_model("neighbour")'):
        with pytest.raises(Failed, match="a model in a sandbox may not load or unload models"):
            run(server, "triton", f"pb_utils.{call}")
    assert run(server, "neighbour", "result = 1") == "1"


def test_a_grant_gives_the_network_and_nothing_else(server: ServerProcess) -> None:
    fetch = (
        "import urllib.request\n"
        f'result = urllib.request.urlopen("http://127.0.0.1:{server.http_port}/v2/health/live").status'
    )
    assert run(server, "web", fetch) == "200"
    for source in ('open("/etc/passwd")', "import os; os.fork()", "import socket; socket.socket(socket.AF_UNIX)"):
        with pytest.raises(Failed, match="PermissionError"):
            run(server, "web", source)


def test_a_grant_gives_processes_that_end_with_the_model(server: ServerProcess) -> None:
    assert run(server, "tool", 'import subprocess; result = subprocess.check_output(["/bin/echo", "hi"])') == "b'hi\\n'"
    with pytest.raises(Failed, match="CalledProcessError"):
        run(server, "tool", 'import subprocess; subprocess.run(["/bin/cat", "/etc/passwd"], check=True)')
    with pytest.raises(Failed, match="PermissionError"):
        run(server, "tool", "import socket; socket.socket()")
    if os.geteuid() == 0:
        bomb = (
            "import os, signal\nforked = 0\n"
            "try:\n    while forked < 20_000:\n"
            "        if not os.fork(): signal.pause()\n        forked += 1\n"
            "except BlockingIOError:\n    result = 'no more'"
        )
        with neighbour_answers(server):
            assert run(server, "tool", bomb) == "no more"
        with pytest.raises(Failed, match="code 3"):
            run(server, "tool", "import os; os._exit(3)")
        wait_for(lambda: len(psutil.Process(server.pid).children(recursive=True)) == len(_MODELS))
    daemon = (
        "import os, signal\nreader, writer = os.pipe()\n"
        "if not os.fork():\n    if not os.fork():\n        os.write(writer, str(os.getpid()).encode())\n"
        "        signal.pause()\n    os._exit(0)\nresult = int(os.read(reader, 20))"
    )
    left = int(run(server, "tool", daemon))
    with pytest.raises(Failed, match="code 3"):
        run(server, "tool", "import os; os._exit(3)")
    wait_for(lambda: not psutil.pid_exists(left))


#: The source, and what it leaves as its result.
_ORDINARY = {
    "numpy": ("import numpy; result = float(numpy.linalg.det(numpy.eye(200)))", "1.0"),
    "onnxruntime": ("import onnxruntime; result = len(onnxruntime.get_available_providers()) > 0", "True"),
    "torch": ("import torch; result = int((torch.ones(64, 64) @ torch.ones(64, 64)).sum())", "262144"),
    "temporary files": (
        "import tempfile\nwith tempfile.NamedTemporaryFile() as file:\n"
        "    file.write(b'x'); file.flush(); result = open(file.name).read()",
        "x",
    ),
    "threads": (
        "from concurrent.futures import ThreadPoolExecutor\n"
        "with ThreadPoolExecutor(8) as pool: result = sum(pool.map(len, ['a'] * 100))",
        "100",
    ),
    "asyncio": ("import asyncio; result = asyncio.run(asyncio.sleep(0, 5))", "5"),
    "time zones": ("import zoneinfo; result = zoneinfo.ZoneInfo('Europe/Zurich').key", "Europe/Zurich"),
    "its own files": ("import pathlib; result = len(list(pathlib.Path(__file__).parents[1].iterdir()))", "2"),
    "signals to itself": (
        "import os, signal\nsignal.signal(signal.SIGUSR1, lambda *_: None)\n"
        "result = os.kill(os.getpid(), signal.SIGUSR1)",
        "None",
    ),
    "changing what it wrote": (
        "import os, shutil, tempfile\nwith tempfile.TemporaryDirectory() as place:\n    os.chdir(place)\n"
        "    open('a', 'w').write('a'); shutil.copy2('a', 'b'); os.rename('b', 'c'); result = open('c').read()",
        "a",
    ),
}


@pytest.mark.parametrize("what", _ORDINARY)
def test_ordinary_models_work(server: ServerProcess, what: str) -> None:
    source, result = _ORDINARY[what]
    assert run(server, "neighbour", source) == result
