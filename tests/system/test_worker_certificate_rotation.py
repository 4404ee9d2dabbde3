"""A worker alone: `isochrone certs rotate` gives it, its callers and their authority new certificates, under load."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

from caller_load import tls_load
from development_ca import DevelopmentCa
from isochrone.cli.main import app
from sample_models import write_models
from server_process import StartServer
from watching import wait_for

LOADED = "the certificate was loaded again"


def test_certificates_and_their_authority_are_replaced_without_a_failure(
    tmp_path: Path, server_factory: StartServer
) -> None:
    ca = DevelopmentCa(tmp_path / "ca").issue("worker", "localhost", "127.0.0.1").issue("alice", client=True)
    repository = write_models(tmp_path / "models", "identity_int32")
    authority = ca.ca.read_text()
    with server_factory(repository, *ca.server_flags("worker")) as worker, tls_load(worker, ca, "alice") as load:
        load.more()
        for words in ([], ["--ca"], ["--ca"], ["--ca"], []):
            before = sum(event.get("event") == LOADED for event in worker.log_events())
            ended = CliRunner().invoke(app, ["certs", "rotate", *words, str(ca.directory)])
            assert ended.exit_code == 0, ended.output
            wait_for(lambda before=before: sum(event.get("event") == LOADED for event in worker.log_events()) > before)
            load.more()
    assert load.failures == []
    # Each way had answers before, and after each of the five changes.
    assert all(number >= 6 * 5 for number in load.answered.values()), load.answered
    assert ca.ca.read_text() != authority
