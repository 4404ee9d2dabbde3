"""Addresses without a Ray cluster are reported within seconds, with the flag to change."""

from __future__ import annotations

import socket
import threading

import pytest

from isochrone.engines.ray import connecting
from isochrone.engines.ray.connecting import connect, explained
from isochrone.errors import ConfigError


@pytest.mark.parametrize("address", ["nowhere", "10.0.0.1", ":6379", "h:99999", "h:port"])
def test_an_address_needs_a_host_and_a_port(address: str) -> None:
    with pytest.raises(ConfigError, match=r"--address: address: expected HOST:PORT, ray://HOST:PORT or auto, given"):
        connect(address)


@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_nobody_listens(scheme: str) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"{scheme}127.0.0.1:{closed.getsockname()[1]}"
        with pytest.raises(
            ConfigError, match="--address: address: expected the address of a running Ray cluster"
        ) as error:
            connect(address)
    assert f"{address!r}, where none answers" in str(error.value)


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n"])
def test_another_server_has_the_port(answer: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connecting, "_SECONDS", 30.0)
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=_answer, args=(server, answer))
        thread.start()
        with pytest.raises(ConfigError, match=r"where none answers \(another server has the port\)"):
            connect(f"127.0.0.1:{server.getsockname()[1]}")
        thread.join()


def _answer(server: socket.socket, answer: bytes) -> None:
    connection, _ = server.accept()
    with connection:
        connection.recv(100)
        connection.sendall(answer)


def test_the_package_is_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connecting, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"--engine: .*pip install 'isochrone\[ray\]'"):
        connect("127.0.0.1:6379")


def test_errors_of_ray_become_sentences() -> None:
    # As ray._private.utils.check_version_info writes it.
    mismatch = RuntimeError("Version mismatch: The cluster was started with:\n    Ray: 2.51.0\n    Python: 3.11.7\n")
    assert str(explained(mismatch, "h:1")) == (
        "--address: cluster: expected the Ray and Python of this environment, given Version mismatch: The cluster was "
        "started with: Ray: 2.51.0 Python: 3.11.7"
    )
    assert "where none answers (ray client connection timeout)" in str(
        explained(ConnectionError("ray client connection timeout"), "ray://h:1")
    )
    assert str(explained(RuntimeError("\nno space\n"), "h:1")) == "Ray at h:1: no space"


def test_the_variable_of_ray_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "nowhere")
    with pytest.raises(ConfigError, match="given 'nowhere'"):
        connect("auto")
