"""HTTP/1.1 messages as bytes, written and read by hand."""

from __future__ import annotations

HOST = b"host: test\r\n"


def request(body: bytes = b"", *, method: bytes = b"POST", chunks: int = 0, extra: bytes = b"") -> bytes:
    head = b"%s /v2 HTTP/1.1\r\n%s%s" % (method, HOST, extra)
    if chunks:
        size = max(1, -(-len(body) // chunks))
        coded = b"".join(
            b"%x\r\n%s\r\n" % (len(body[index : index + size]), body[index : index + size])
            for index in range(0, len(body), size)
        )
        return head + b"transfer-encoding: chunked\r\n\r\n" + coded + b"0\r\n\r\n"
    if body:
        head += b"content-length: %d\r\n" % len(body)
    return head + b"\r\n" + body


def responses(data: bytes) -> list[tuple[int, dict[bytes, bytes], bytes]]:
    """Reads answers that announce their length."""
    result = []
    while data:
        head, _, data = data.partition(b"\r\n\r\n")
        status, *lines = head.split(b"\r\n")
        fields = dict(line.split(b": ", 1) for line in lines)
        length = int(fields[b"content-length"])
        assert len(data) >= length
        result.append((int(status.split(b" ")[1]), fields, data[:length]))
        data = data[length:]
    return result
