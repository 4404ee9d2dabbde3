"""The metrics pages of real Triton and of our worker: every metric of Triton's is on ours, with its type and labels."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from worker_models import TRITON_MODELS, write_for_triton, write_for_worker

from bench.ports import free_ports
from bench.worker.peers import triton
from bench.worker.peers.process import environment_python, scratch
from server_process import StartServer

pytestmark = pytest.mark.peers


@pytest.fixture(scope="module", params=[False, True], ids=["without a cache", "with a cache"])
def pages(
    request: pytest.FixtureRequest, server_factory: StartServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, str]]:
    """Ours and Triton's, after the same requests."""
    cache = ("--cache-config=local,size=1048576",) if request.param else ()
    ours_at = write_for_worker(tmp_path_factory.mktemp("metrics") / "models")
    with ExitStack() as stack:
        directory = stack.enter_context(scratch("metrics"))
        theirs_at = write_for_triton(directory / "models")
        if request.param:
            for repository in (ours_at, theirs_at):
                with (repository / "identity" / "config.pbtxt").open("a") as file:
                    file.write("response_cache { enable: true }\n")
        port = free_ports(1)[0]
        flags = ("--allow-metrics=true", "--metrics-address=127.0.0.1", f"--metrics-port={port}", *cache)
        flags += (f"--cache-directory={triton.cache_directory(environment_python(''))}",)
        peer = stack.enter_context(
            triton.serve_repository(theirs_at, environment_python(""), directory, TRITON_MODELS, flags)
        )
        worker = stack.enter_context(server_factory(ours_at, *cache))
        body = json.dumps({"inputs": [{"name": "INPUT0", "shape": [1], "datatype": "FP32", "data": [1.0]}]}).encode()
        for address in (f"http://{worker.http_url}", peer.http_url):
            for _ in range(3):
                urllib.request.urlopen(f"{address}/v2/models/identity/infer", body, timeout=60).close()
        yield page(f"127.0.0.1:{worker.metrics_port}"), page(f"127.0.0.1:{port}")


def page(address: str) -> str:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=60) as answer:
        return str(answer.read().decode())


def kinds(text: str) -> dict[str, str]:
    return dict(re.findall(r"^# TYPE (nv_\w+) (\w+)$", text, re.MULTILINE))


def labels(text: str) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for name, inside in re.findall(r"^(nv_\w+)(?:{(.*)})? ", text, re.MULTILINE):
        found.setdefault(name, set()).update(re.findall(r'(\w+)="', inside))
    return found


def value(text: str, name: str) -> float:
    found = re.search(rf'^{name}{{[^}}]*model="identity"[^}}]*}} (\S+)$', text, re.MULTILINE)
    assert found is not None, name
    return float(found[1])


def test_every_metric_of_tritons_is_there_with_its_type_and_labels(pages: tuple[str, str]) -> None:
    ours, theirs = pages
    assert "nv_inference_count" in kinds(theirs)
    assert kinds(theirs).items() <= kinds(ours).items()
    for name, expected in labels(theirs).items():
        assert labels(ours)[name] == expected, name
    # Figures of the cache come with a cache, in both; those per model are always there in ours.
    assert ("nv_cache_util" in kinds(ours)) == ("nv_cache_util" in kinds(theirs))


def test_the_counts_agree(pages: tuple[str, str]) -> None:
    ours, theirs = pages
    for name in ("nv_inference_request_success", "nv_inference_count", "nv_inference_exec_count"):
        assert value(ours, name) == value(theirs, name), name
    if "nv_cache_util" in kinds(theirs):
        for name in ("nv_cache_num_hits_per_model", "nv_cache_num_misses_per_model"):
            assert value(ours, name) == value(theirs, name), name
