"""Which certificates commands use: the environment's, or those of the fleet that was started last."""

from __future__ import annotations

from pathlib import Path

import pytest

from isochrone.cli.api_tls import CA, CERT, KEY, ApiTls, api_tls
from isochrone.cli.last_fleet import LastFleet, remember
from isochrone.errors import InvalidArgument

API = "https://10.0.0.1:8003"


@pytest.fixture(autouse=True)
def remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LastFleet:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg"))
    for name in (CA, CERT, KEY):
        monkeypatch.delenv(name, raising=False)
    for name in ("ca", "cert", "key"):
        (tmp_path / name).write_text("")
    files = (str(tmp_path / name) for name in ("ca", "cert", "key"))
    last = LastFleet("a", API, str(tmp_path), "", "", *files, "fleet.internal")
    remember(last)
    return last


def test_the_last_fleets_files_are_for_its_own_host(remembered: LastFleet) -> None:
    own = ApiTls(remembered.ca, remembered.cert, remembered.key, "fleet.internal")
    assert api_tls() == api_tls(API) == api_tls("https://10.0.0.1:8004") == own
    assert api_tls("https://10.0.0.2:8003") == ApiTls()


def test_the_environment_goes_first(remembered: LastFleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CA, "/other/ca")
    assert api_tls(API) == ApiTls("/other/ca")
    monkeypatch.setenv(CERT, "/other/cert")
    with pytest.raises(InvalidArgument, match="go together"):
        api_tls(API)
    monkeypatch.setenv(KEY, "/other/key")
    assert api_tls(API) == ApiTls("/other/ca", "/other/cert", "/other/key")


def test_files_that_are_gone_are_not_used(remembered: LastFleet) -> None:
    Path(remembered.key).unlink()
    assert api_tls(API) == ApiTls(remembered.ca, server_name="fleet.internal")
    Path(remembered.ca).unlink()
    assert api_tls(API) == ApiTls()


def test_an_unreadable_authority_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=f"{CA}: expected PEM authorities"):
        ApiTls(str(tmp_path / "none")).context()


def test_earlier_releases_remembered_less(tmp_path: Path) -> None:
    remember(LastFleet("a", "http://10.0.0.1:8003", str(tmp_path)))
    assert api_tls("http://10.0.0.1:8003") == ApiTls()
