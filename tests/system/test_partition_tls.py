"""Tiers behind TLS that asks for certificates: models are measured on them, and the near worker calls the far one."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from development_ca import DevelopmentCa
from divided_repository import write_divided
from isochrone.cli.api_tls import ApiTls
from isochrone.errors import Unavailable
from isochrone.optimize.partitioning.link_measuring import measured_link
from isochrone.optimize.partitioning.tiers import TierWorker
from sample_models import write_models
from server_process import StartServer

FLAGS = ("--model-control-mode", "explicit", "--allow-file-overrides")


def test_the_link_between_workers_with_tls_is_measured(tmp_path: Path, server_factory: StartServer) -> None:
    ca = DevelopmentCa(tmp_path / "ca").issue("fleet", "127.0.0.1", client=True)
    certificate, key = ca.pair("fleet")
    files = {"ca": str(ca.ca), "cert": certificate, "key": key}
    repository = write_models(tmp_path / "models", "identity_fp32")
    with ExitStack() as stack:
        servers = [stack.enter_context(server_factory(repository, *FLAGS, *ca.server_flags("fleet"))) for _ in range(2)]
        urls = [f"https://{each.http_url}" for each in servers]
        edge, core = (
            stack.enter_context(TierWorker(tier, url, transport=ApiTls(**files).transport(), certificates=files))
            for tier, url in zip(("edge", "core"), urls, strict=True)
        )
        link = measured_link(edge, core, lambda line: None, largest=1 << 14)
        assert link.bytes_per_second > 0
        foreign = DevelopmentCa(tmp_path / "foreign")
        with (
            TierWorker("edge", urls[0], token="secret", transport=ApiTls(str(foreign.ca)).transport()) as stranger,
            pytest.raises(Unavailable, match="certificate verify failed"),
            stranger.loaded({}),
        ):
            pass


@pytest.mark.parametrize("keeps_one", [False, True])
def test_written_models_name_the_certificates(tmp_path: Path, keeps_one: bool) -> None:
    files = {"ca": "/pki/ca.crt", "cert": "/pki/tls.crt", "key": "/pki/tls.key"}
    seconds = {"cut-6": (0.001, 0.001)}
    target = tmp_path / "divided"
    write_divided(target, "https://core-1:8000", seconds, keeps_one=keeps_one, certificates=files)
    configs = [path.read_text() for path in target.glob("edge/*/config.pbtxt")]
    calls = [text for text in configs if "https://core-1:8000" in text]
    assert calls
    assert all(file in text for text in calls for file in files.values())
