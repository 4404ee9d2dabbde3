"""Statuses as gRPC trailers: the words that clients look for."""

from __future__ import annotations

from urllib.parse import unquote

import hpack
import pytest

from isochrone.errors import GRPC_DEADLINE_EXCEEDED, GRPC_NOT_FOUND
from isochrone.protocol.grpc.calls import error_block


def message_of(status: int, message: str) -> str:
    fields = dict(hpack.Decoder().decode(error_block(status, message, trailers_only=False)))
    assert fields["grpc-status"] == str(status)
    return unquote(fields["grpc-message"])


@pytest.mark.parametrize("text", ["Request timeout expired: model 'm' would miss the deadline by 1.20 ms", ""])
def test_a_missed_deadline_reads_as_grpcs_own(text: str) -> None:
    assert message_of(GRPC_DEADLINE_EXCEEDED, text) == f"Deadline Exceeded: {text}"


def test_other_errors_are_left_alone() -> None:
    assert message_of(GRPC_NOT_FOUND, "no such model ü") == "no such model ü"
