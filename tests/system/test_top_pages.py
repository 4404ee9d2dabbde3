"""Metrics pages of many processes at once: those that hang or fail have no figures, and delay the others little."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from isochrone.cli.top.pages import PageFailed, Pages


class _Process(BaseHTTPRequestHandler):
    go_on = threading.Event()
    counts = 0

    def do_GET(self) -> None:
        if self.path == "/hangs":
            self.go_on.wait(100)
            return
        if self.path == "/fails":
            self.send_error(500)
            return
        type(self).counts += 10
        content = f'isochrone_gateway_requests_total{{model="a"}} {self.counts}\n'.encode()
        if self.path == "/broken":
            content = b"isochrone_gateway_requests_total{model=a} 1\n"
        self.send_response(200)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@pytest.fixture
def url() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Process) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        _Process.go_on.clear()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        _Process.go_on.set()
        server.shutdown()
        thread.join()


def test_pages_are_compared_with_their_last_reading_and_bad_ones_left_out(url: str) -> None:
    urls = {name: f"{url}/{name}" for name in ("hangs", "fails", "broken", "good")} | {"odd": "http://["}
    with Pages() as pages:
        before, after, seconds = pages.read_all(urls)["good"]
        assert (before.sums, seconds) == ({}, 0.0)
        found = pages.read_all(urls)
        assert list(found) == ["good"]
        assert found["good"][0] == after
        assert found["good"][1].sums["requests"] > after.sums["requests"]
        assert found["good"][2] > 0
        # A process that was away has no earlier reading.
        assert pages.read_all({}) == {}
        assert pages.read_all({"good": f"{url}/good"})["good"][0].sums == {}


@pytest.mark.parametrize(
    ("path", "reason"),
    [("hangs", "no answer within 2 s"), ("fails", "it answered 500"), ("broken", "no labels of a metrics page")],
)
def test_one_page_says_why_it_cannot_be_read(url: str, path: str, reason: str) -> None:
    with Pages() as pages, pytest.raises(PageFailed, match=reason):
        pages.read(f"{url}/{path}")
