"""Waiting for a server: how often it is asked, and what is raised in the end."""

from __future__ import annotations

from isochrone.client.address import Address
from isochrone.errors import Unavailable

#: Seconds for a question about readiness or metadata.
QUESTION_SECONDS = 5.0
POLL_SECONDS = 0.05
NOT_READY = "it is reachable and not ready"


def never_ready(address: Address, model: str, seconds: float, reason: str) -> Unavailable:
    subject = f"model '{model}' of {address}" if model else str(address)
    return Unavailable(f"{subject} is not ready after {seconds:g} s: {reason}")
