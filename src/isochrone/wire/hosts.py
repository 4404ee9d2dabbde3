"""Values of Host and of ``:authority``: the same are accepted over HTTP/1.1 and over HTTP/2.

A gateway sends requests on in either version. A value that only one of them accepts would be refused by the worker, as
if the gateway had sent it, and would count against that worker.
"""

from __future__ import annotations

import re

_NOT_IN_HOSTS = re.compile(rb"[\x00-\x20\x7f]")


def is_malformed_host(value: bytes) -> bool:
    """RFC 9112 §3.2, RFC 9113 §8.3.1: no authority contains white space or control characters."""
    return _NOT_IN_HOSTS.search(value) is not None
