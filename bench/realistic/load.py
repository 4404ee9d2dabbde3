"""One figure: a cell's requests to one server, by wrk (HTTP) or by our own generator (gRPC)."""

import re
import statistics
from pathlib import Path

from bench.realistic.cells import HTTP, Cell
from bench.realistic.grpc_generator import run_calls
from bench.realistic.messages import Message
from bench.worker.conversations import ConversationFailed
from bench.worker.grpc_probe import probe
from bench.worker.load import Figure, LoadFailed, duration_us, first_group, run_tool
from bench.worker.peers import Peer

#: wrk builds each request in Lua: two pieces, and an id between them.
_SCRIPT = """
local heads, tails, n = {}, {}, 0
for i = 1, %(count)d do
  local file = io.open("%(directory)s/" .. i, "rb")
  local text = file:read("*a")
  file:close()
  local at = %(places)s
  heads[i] = at[i] >= 0 and text:sub(1, at[i]) or text
  tails[i] = at[i] >= 0 and text:sub(at[i] + 13) or nil
end
request = function()
  n = n + 1
  local i = n %% #heads + 1
  if tails[i] == nil then return heads[i] end
  return heads[i] .. string.format("%%012d", n) .. tails[i]
end
"""


def measure(peer: Peer, cell: Cell, seconds: float, directory: Path) -> Figure:
    """Raises LoadFailed: a request failed."""
    messages = cell.messages()
    if cell.transport == HTTP:
        return _http(peer, cell, messages, seconds, directory)
    return _grpc(peer, cell, messages, seconds)


def _http(peer: Peer, cell: Cell, messages: list[Message], seconds: float, directory: Path) -> Figure:
    folder = directory / re.sub(r"\W+", "_", f"{cell.kind}_{cell.model}")
    if not folder.exists():
        folder.mkdir()
        for number, message in enumerate(messages, 1):
            (folder / str(number)).write_bytes(message.data)
        places = "{" + ",".join(str(message.id_at) for message in messages) + "}"
        script = _SCRIPT % {"count": len(messages), "directory": folder, "places": places}
        (folder / "script.lua").write_text(script)
    duration = max(1, round(seconds))
    command = ["wrk", "-t1", f"-c{cell.in_flight}", f"-d{duration}s", "--timeout", "30s", "--latency"]
    before = peer.cpu_seconds()
    output = run_tool([*command, "-s", str(folder / "script.lua"), str(peer.http_url)], 60 + duration * 2)
    cpu = peer.cpu_seconds() - before
    if problem := re.search(r"Non-2xx.*|Socket errors:.*", output):
        raise LoadFailed(f"wrk: {problem[0].strip()}")
    return Figure(
        requests=int(first_group(r"(\d+) requests in", output)),
        requests_per_second=float(first_group(r"Requests/sec:\s+([\d.]+)", output)),
        cpu_seconds=cpu,
        median_us=duration_us(first_group(r"(?m)^\s+50%\s+(\S+)$", output)),
        p99_us=duration_us(first_group(r"(?m)^\s+99%\s+(\S+)$", output)),
    )


def _grpc(peer: Peer, cell: Cell, messages: list[Message], seconds: float) -> Figure:
    if peer.grpc_address is None:
        raise LoadFailed(f"{peer.name} speaks no gRPC")
    before = peer.cpu_seconds()
    client_share = None
    try:
        if cell.is_large:
            found = probe(peer.grpc_address, messages[0].data, cell.tensor_bytes, seconds, warm_up_calls=5)
            latencies, elapsed = found.latencies_ns, found.seconds
        else:
            answers = run_calls(
                peer.grpc_address,
                messages,
                cell.in_flight,
                seconds,
                expected_bytes=cell.tensor_bytes,
                # Servers allow about 100 streams on a connection; agents have connections of their own.
                connections=max(1, cell.in_flight // 16),
                streaming=cell.streams,
                chains=cell.chain,
            )
            latencies, elapsed = answers.latencies_ns, answers.seconds
            client_share = answers.cpu_seconds / elapsed
    except (ConversationFailed, OSError) as error:
        raise LoadFailed(f"gRPC: {error}") from error
    cpu = peer.cpu_seconds() - before
    ordered = sorted(latencies)
    return Figure(
        requests=len(ordered),
        requests_per_second=len(ordered) / elapsed,
        cpu_seconds=cpu,
        median_us=statistics.median(ordered) / 1e3,
        p99_us=ordered[int(len(ordered) * 0.99)] / 1e3,
        client_share=client_share,
    )
