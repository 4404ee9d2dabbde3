"""A fleet for tests that uses most of the file, and ways to change it."""

from __future__ import annotations

from pathlib import Path

from isochrone.control.fleet.reading.parsing import parse_fleet
from isochrone.control.fleet.settings.spec import Fleet

DIRECTORY = Path("/srv/demo")

TEXT = """\
name: demo
repository: ./models
store: {url: "sqlite:state/fleet.db"}
control: {listen: "127.0.0.1:8003", count: 1}
gateways:
  gw: {listen: "127.0.0.1:8000", count: 2}
pools:
  cpu:
    workers: 3
    min: 1
    max: 8
    memory: 2GiB
  gpu: {workers: 1, tier: core, device: gpu, distance_ms: 4}
defaults:
  slo: {deadline_ms: 100}
  traffic: {retries: {ratio: 0.2}}
models:
  preprocess:
  detector:
    version: 1
    pools: [cpu]
    memory: 200MiB
    traffic: {quota: {concurrency: 8}}
  pipeline:
    version: 1
    with: [detector]
    stages: [preprocess, detector]
    rollout: {cutover: strict, canary: {steps: [5%, 0.25]}}
"""


def parse(text: str) -> Fleet:
    return parse_fleet(text, "fleet.yaml", DIRECTORY)


def changed(*changes: tuple[str, str]) -> str:
    """The text with words replaced, each of which must be there."""
    text = TEXT
    for before, after in changes:
        assert before in text, before
        text = text.replace(before, after, 1)
    return text
