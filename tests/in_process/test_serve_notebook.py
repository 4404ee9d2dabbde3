"""A real Jupyter kernel: servers from cells, whose classes are nowhere but in the notebook."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Any

import pytest
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager

import isochrone
from bench.ports import free_ports


class Notebook:
    """Runs cells, one after the other."""

    def __init__(self, manager: KernelManager, client: BlockingKernelClient) -> None:
        self.manager, self._client = manager, client

    def start(self, source: str) -> str:
        return str(self._client.execute(textwrap.dedent(source)))

    def result(self, cell: str) -> tuple[str, str]:
        """(what it printed, the error that it raised) of a cell that was started."""
        printed, error = "", ""
        while True:
            message = self._client.get_iopub_msg(timeout=60)
            if message["parent_header"].get("msg_id") != cell:
                continue
            content: Any = message["content"]
            if message["msg_type"] == "stream":
                printed += content["text"]
            elif message["msg_type"] == "error":
                error = f"{content['ename']}: {content['evalue']}"
            elif message["msg_type"] == "status" and content["execution_state"] == "idle":
                return printed, error

    def run(self, source: str) -> tuple[str, str]:
        return self.result(self.start(source))


@pytest.fixture(scope="module")
def notebook() -> Iterator[Notebook]:
    manager = KernelManager(kernel_name="python3")
    manager.start_kernel()
    client = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=60)
        yield Notebook(manager, client)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
        manager.context.destroy()


def test_serve_infer_and_stop_in_cells_and_again(notebook: Notebook) -> None:
    assert notebook.run("""
        import threading
        import numpy as np
        import isochrone

        class Scale:
            def load(self, context):
                self.factor = np.float32(3)

            def infer(self, inputs):
                return {"y": inputs["x"] * self.factor}
    """) == ("", "")
    for _ in range(2):
        assert notebook.run("""
            ports = {"http_port": 0, "grpc_port": 0, "metrics_port": 0}
            server = isochrone.serve(Scale, inputs={"x": "FP32[2]"}, block=False, **ports)
        """) == ("", "")
        assert notebook.run('print(server.client().infer("Scale", {"x": np.float32([1, 2])})["y"].tolist())') == (
            "[3.0, 6.0]\n",
            "",
        )
        asked = 'async with isochrone.AsyncClient(server.grpc_url) as c: print(await c.is_ready("Scale"))'
        assert notebook.run(asked) == ("True\n", "")
        assert notebook.run("server.stop(); print(server.is_running)") == ("False\n", "")
    assert notebook.run("print([t.name for t in threading.enumerate() if 'isochrone' in t.name])") == ("[]\n", "")


def test_an_error_names_the_line_of_the_cell(notebook: Notebook) -> None:
    printed, error = notebook.run("""
        import numpy as np, isochrone
        def fails(x):
            if x[0]:
                raise ValueError("no")
            return {"y": x}
        ports = {"http_port": 0, "grpc_port": 0, "metrics_port": 0}
        with isochrone.serve(fails, inputs={"x": "FP32[1]"}, block=False, **ports) as server:
            server.client().infer("fails", {"x": np.float32([1])})
    """)
    assert "infer raised ValueError: no (cell, line 4)" in printed  # the log, on stderr
    assert error == "Internal: model 'fails': infer raised ValueError: no (cell, line 4)"


def test_a_blocking_cell_ends_with_an_interrupt(notebook: Notebook) -> None:
    (port,) = free_ports(1)
    cell = notebook.start(f"""
        import isochrone
        server = isochrone.serve(lambda x: {{"y": x}}, name="same", inputs={{"x": "FP32[1]"}}, http_port={port},
                                 grpc_port=0, metrics_port=0)
    """)
    with isochrone.Client(f"localhost:{port}") as client:
        client.wait_ready(60)
        assert client.is_ready("same")
    notebook.manager.interrupt_kernel()
    printed, error = notebook.result(cell)
    assert error == ""
    assert printed.splitlines()[0].startswith(f"isochrone: serving same at http://127.0.0.1:{port} and grpc://")
    assert printed.splitlines()[-1] == "isochrone: stopped"
    # The kernel's own interrupt works as before. The cell sends it to itself: one sent from outside, while the kernel
    # still publishes what the cell printed, is lost in the kernel now and then.
    assert notebook.run("import signal; signal.raise_signal(signal.SIGINT)") == ("", "KeyboardInterrupt: ")
