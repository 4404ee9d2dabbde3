"""What the supervisor opens before it forks, and when it does not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from sample_models import write_models

#: In a process of its own: pytest's has threads.
_RUN = """
import os, sys, threading, time
from pathlib import Path
os.environ.update({variables!r})
from isochrone.multiprocess.supervision.preload import _threads_after, preload, threads_left
from isochrone.worker.server.settings import ServeSettings
{code}
"""


def _run(code: str, **variables: str) -> list[str]:
    text = _RUN.format(code=code, variables=variables)
    ended = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.splitlines()


def test_threads_that_outlive_a_fork_are_counted() -> None:
    """numpy's are not among them: they end before a fork, and start again after it."""
    code = """
import numpy
print(threads_left())
print(_threads_after(lambda: threading.Thread(target=time.sleep, args=(60,), daemon=True).start()))
print(threads_left())
"""
    assert _run(code) == ["0", "1", "0"]


def test_sessions_survive_the_fork(tmp_path: Path) -> None:
    write_models(tmp_path, "add_sub", "identity_int32")
    code = f"""
kept = preload(ServeSettings((Path({str(tmp_path)!r}),)))
from isochrone.worker.backends.onnx import sessions
print(kept, len(sessions._kept), threads_left())
import numpy
(session,) = [each for found in sessions._kept.values() for each in found]
given = numpy.ones((1, 16), numpy.float32)
pid = os.fork()
if not pid:
    (total, _) = session.run(["OUTPUT0", "OUTPUT1"], {{"INPUT0": given, "INPUT1": given}})
    sys.exit(0 if (total == 2).all() else 1)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
    assert _run(code) == ["1 1 0", "0"]


def test_nothing_is_opened_where_it_would_have_threads(tmp_path: Path) -> None:
    config = write_models(tmp_path, "add_sub") / "add_sub" / "config.pbtxt"
    config.write_text(config.read_text() + 'parameters { key: "intra_op_thread_count" value { string_value: "2" } }\n')
    code = f"print(preload(ServeSettings((Path({str(tmp_path)!r}),))), threads_left())"
    assert _run(code) == ["0 0"]


def test_a_runtime_with_threads_is_left_to_the_processes(tmp_path: Path) -> None:
    """As onnxruntime's telemetry has one. Nothing of the runtime is then in the supervisor."""
    write_models(tmp_path, "no_config")
    code = f"""
from isochrone.worker.backends import registry
import isochrone.multiprocess.supervision.preload as preloading
keep = preloading._keep
def keep_with_thread(context):
    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
    return keep(context)
preloading._keep = keep_with_thread
print(preload(ServeSettings((Path({str(tmp_path)!r}),))), threads_left(), "onnxruntime" in sys.modules)
"""
    assert _run(code)[-1] == "0 0 False"


def test_only_models_of_the_start_are_opened(tmp_path: Path) -> None:
    write_models(tmp_path, "add_sub", "no_config")
    code = f"""
settings = dict(repositories=(Path({str(tmp_path)!r}),), control_mode="explicit")
for names in ((), ("no_config",), ("*",)):
    print(preload(ServeSettings(**settings, load_models=names)))
"""
    assert _run(code) == ["0", "1", "2"]


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    write_models(tmp_path, "add_sub")
    path = tmp_path / "add_sub" / "1" / "model.onnx"
    code = f"""
import onnxruntime
from isochrone.worker.backends.onnx import sessions
path = Path({str(path)!r})
def options(arena=True):
    made = onnxruntime.SessionOptions()
    made.intra_op_num_threads = made.inter_op_num_threads = 1
    made.enable_cpu_mem_arena = arena
    made.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return made
cpu = [("CPUExecutionProvider", {{}})]
print(sessions.keep(path, options(), cpu))
(kept,) = next(iter(sessions._kept.values()))
print(sessions.open_session(path, options(False), cpu) is kept)
print(sessions.open_session(path, options(), cpu) is kept, sessions.open_session(path, options(), cpu) is kept)
sessions.keep(path, options(), cpu)
((kept,),) = [each for each in sessions._kept.values() if each]
os.utime(path, ns=(1, 1))
print(sessions.open_session(path, options(), cpu) is kept)
"""
    assert _run(code) == ["True", "False", "True False", "False"]
