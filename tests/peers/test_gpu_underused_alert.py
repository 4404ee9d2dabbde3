"""``GpuUnderused`` fires in a real Prometheus for a GPU that a real worker reports as idle.

The driver is a stand-in: ``nvml_stand_in.c``, compiled here, takes the place of NVIDIA's libnvidia-ml.so.1 and reports
what a file says. So this shows the way from the library over nvidia-ml-py, the worker's thread and its metrics page to
the alert; it does not show what a real driver reports.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from monitored_fleet import until
from prometheus_server import Prometheus, start_rendered

from sample_models import write_models
from server_process import start_server

pytestmark = [pytest.mark.peers, pytest.mark.timeout(600)]

BUSY, IDLE = "GPU-stand-in-1", "GPU-stand-in-0"
SOURCE = Path(__file__).with_name("nvml_stand_in.c")


@pytest.fixture
def use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that says how many percent of the time the two GPUs compute; workers find the stand-in."""
    pytest.importorskip("pynvml")
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler: cc is not there")
    library = tmp_path / "driver" / "libnvidia-ml.so.1"
    library.parent.mkdir()
    subprocess.run([compiler, "-shared", "-fPIC", "-Wall", "-Werror", "-o", library, SOURCE], check=True)
    file = tmp_path / "use"
    monkeypatch.setenv("LD_LIBRARY_PATH", str(library.parent))
    monkeypatch.setenv("NVML_STAND_IN", str(file))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return _set(file, "30 90")


@pytest.fixture
def prometheus(use: Path, tmp_path: Path) -> Iterator[Prometheus]:
    repository = write_models(tmp_path / "models", "identity_fp32")
    with (
        start_server(repository, log_path=tmp_path / "worker.log") as worker,
        start_rendered(tmp_path / "prometheus", "--worker", f"127.0.0.1:{worker.metrics_port}") as server,
    ):
        yield server


def _set(file: Path, text: str) -> Path:
    """At once: a worker never reads a half of it."""
    file.with_suffix(".new").write_text(text)
    return file.with_suffix(".new").rename(file)


def test_a_gpu_that_is_hardly_used(prometheus: Prometheus, use: Path) -> None:
    until(lambda: prometheus.readings("nv_gpu_utilization", gpu_uuid=IDLE) >= 5, "figures of the GPU")
    assert not prometheus.firing("GpuUnderused")
    _set(use, "5 90")
    # The mean of the hour falls below a fifth with some more readings.
    (found,) = until(lambda: prometheus.firing("GpuUnderused"), "GpuUnderused")
    assert found["labels"]["gpu_uuid"] == IDLE
    assert 0.05 < float(found["value"]) < 0.2
    assert prometheus.readings("nv_gpu_utilization", gpu_uuid=BUSY) >= 5
