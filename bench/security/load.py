"""Loads one server for a few seconds: with wrk where it can present what the state needs, or with `isochrone bench`."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

from bench.observe_cost import MODEL, WIDTH, found_in, microseconds
from bench.security.servers import Server
from bench.security.states import Material, State

OWN, WRK = "isochrone bench", "wrk"
_SCRIPT = """
local file = io.open("%s", "rb")
wrk.method = "POST"
wrk.path = "/v2/models/%s/infer"
wrk.body = file:read("*a")
wrk.headers["Content-Type"] = "application/octet-stream"
wrk.headers["Inference-Header-Content-Length"] = "%d"
"""


def generator_of(state: State, protocol: str, given: argparse.Namespace) -> str:
    """wrk speaks neither gRPC nor for a client with a certificate."""
    return WRK if given.wrk and protocol == "http" and not state.mutual else OWN


def write_script(place: Path) -> Path:
    shape = {"name": "INPUT0", "shape": [WIDTH], "datatype": "FP32", "parameters": {"binary_data_size": 4 * WIDTH}}
    outputs = [{"name": "OUTPUT0", "parameters": {"binary_data": True}}]
    head = json.dumps({"id": "request", "inputs": [shape], "outputs": outputs}).encode()
    body = place / "body.bin"
    body.write_bytes(head + bytes(4 * WIDTH))
    script = place / "request.lua"
    script.write_text(_SCRIPT % (body, MODEL, len(head)))
    return script


def load(
    server: Server,
    material: Material,
    protocol: str,
    in_flight: int,
    generator: str,
    given: argparse.Namespace,
    script: Path,
    seconds: float,
) -> dict[str, float]:
    """Requests per second, median in µs, and µs of CPU time of the server's processes per request."""
    before = server.cpu_seconds()
    authorization = material.authorization(server.state)
    if generator == WRK:
        threads = max(1, min(len(given.generator_cores), 4, in_flight))
        command = [given.wrk, f"-t{threads}", f"-c{in_flight}", f"-d{seconds:g}s", "--latency", "-s", str(script)]
        command += ["-H", f"Authorization: {authorization}"] if authorization else []
        output = _run([*command, server.url("http")], seconds)
        if "Non-2xx" in output or "Socket errors" in output:
            raise SystemExit(f"bench.security: requests failed:\n{output}")
        rate = float(found_in(r"Requests/sec:\s+([\d.]+)", output))
        requests = int(found_in(r"(\d+) requests in", output))
        median = microseconds(found_in(r"(?m)^\s+50%\s+(\S+)$", output))
    else:
        words = ["bench", server.url(protocol), "--model", MODEL, "--concurrency", str(in_flight), "--json"]
        words += ["--seconds", f"{seconds:g}", "--warmup-seconds", "0"]
        words += ["--processes", str(min(given.processes, in_flight))]
        words += ["--header", f"authorization: {authorization}"] if authorization else []
        words += ["--ca", str(material.ca)] if server.state.tls else []
        if server.state.mutual:
            certificate, key = material.pair("client")
            words += ["--cert", certificate, "--key", key]
        summary = json.loads(_run([sys.executable, "-m", "isochrone", *words], seconds))
        found = summary["total"]
        if summary["errors"]:
            raise SystemExit(f"bench.security: {server.state.name}: requests failed: {summary['errors']}")
        rate, median = float(found["rate"]), float(found["latency_ms"]["p50"]["value"]) * 1000
        requests = round(rate * seconds)
    cpu = (server.cpu_seconds() - before) / max(1, requests) * 1e6
    return {"rate": rate, "p50_us": median, "cpu_us": cpu, "requests": requests}


def _run(command: list[str], seconds: float) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 60, check=False)
    if done.returncode:
        # Not the whole command: it has a token.
        raise SystemExit(f"bench.security: {command[0]} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout
