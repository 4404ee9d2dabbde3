"""What the operator gives, what follows for a model, and what a model's process sees of the worker's environment."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from isochrone.errors import ConfigError, FlagError
from isochrone.secure.sandbox import explained
from isochrone.secure.sandbox.confinement import Confinement
from isochrone.secure.sandbox.environment import scrubbed, with_directory
from isochrone.secure.sandbox.files import paths
from isochrone.secure.sandbox.settings import SandboxSettings, read_grants
from isochrone.secure.sandbox.support import Support, check

_WHOLE = Support(landlock=6, filters=True)
# fmt: off
_SECRETS = (
    "ISOCHRONE_API_TOKEN", "ISOCHRONE_STORE_PASSWORD", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "HF_TOKEN",
    "GOOGLE_APPLICATION_CREDENTIALS", "AZURE_CLIENT_SECRET", "HTTPS_PROXY", "LD_PRELOAD", "PYTHONSTARTUP", "HOME",
    "PATHS",
)
# fmt: on


def test_a_model_has_what_its_name_is_given_and_nothing_else(tmp_path: Path) -> None:
    settings = SandboxSettings(_WHOLE, 100, {"big": 900}, read_grants(["network=web", "processes=web", "network=a"]))
    web, big = (settings.confinement(name, str(tmp_path)) for name in ("web", "big"))
    assert (web.network, web.processes, web.memory_bytes) == (True, True, 100)
    assert (big.network, big.processes, big.memory_bytes) == (False, False, 900)
    assert Confinement.decoded(web.encoded()) == web


@pytest.mark.parametrize("text", ["network", "network=", "=m", "all=m", "NETWORK=m", ""])
def test_a_grant_that_is_none_is_an_error(text: str) -> None:
    with pytest.raises(FlagError, match="--sandbox-allow: expected GRANT=MODEL"):
        read_grants([text])


def test_a_repository_that_every_model_could_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = SandboxSettings(_WHOLE, 100)
    model = tmp_path / "packages" / "models" / "m"
    model.mkdir(parents=True)
    assert settings.confinement("m", str(model)).directory == str(model)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "packages")])
    with pytest.raises(ConfigError, match="every model may read"):
        settings.confinement("m", str(model))
    # A link does not hide it.
    (tmp_path / "link").symlink_to(model)
    with pytest.raises(ConfigError, match="every model may read"):
        settings.confinement("m", str(tmp_path / "link"))
    with pytest.raises(ConfigError, match="another directory than /dev/shm"):
        settings.confinement("m", "/dev/shm")


def test_directories_inside_of_others_are_named_once(tmp_path: Path) -> None:
    inner = tmp_path / "lib" / "python" / "site-packages"
    inner.mkdir(parents=True)
    (tmp_path / "library").mkdir()
    found = paths.python_directories(
        [str(inner), str(tmp_path / "library"), str(tmp_path / "absent"), ""], [str(tmp_path)], {}
    )
    assert found == (str(tmp_path / "lib"), str(tmp_path / "library"))


def test_nothing_of_etc_or_of_homes_is_in_the_rules() -> None:
    named = [rule.path for rule in paths.rules("/srv/m", (), 7, scratch="", network=True, processes=True)]
    assert not {"/", "/etc", "/etc/passwd", "/home", "/root", "/proc", "/run", "/var", "/tmp", "/sys", "/dev"} & {
        *named
    }
    granted = {rule.path for rule in paths.rules("/srv/m", (), 7, scratch="", network=False, processes=False)}
    assert "/etc/resolv.conf" not in granted
    assert "/usr/bin" not in granted


def test_secrets_of_the_environment_stay_with_the_worker() -> None:
    secrets = dict.fromkeys(_SECRETS, "secret")
    kept = {"PATH": "/bin", "LC_ALL": "C", "OMP_NUM_THREADS": "2", "PYTHONPATH": "/lib"}
    assert scrubbed({**secrets, **kept}) == kept
    assert with_directory("")["TMPDIR"] == "/nonexistent"


def test_a_kernel_without_a_part_is_refused_unless_best_effort_will_do() -> None:
    assert check(_WHOLE, best_effort=False) == []
    for support, part in ((Support(0, True), "Landlock"), (Support(6, False), "seccomp")):
        with pytest.raises(FlagError, match=f"--sandbox: .*--sandbox-best-effort.*lacks {part}"):
            check(support, best_effort=False)
        assert [text.split()[0] for text in check(support, best_effort=True)] == [part]


def test_errors_name_the_sandbox_only_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert explained.hint(PermissionError()) == ""
    monkeypatch.setattr(explained, "confinement", Confinement("m", "/m", (), 123))
    assert "docs/sandbox.md" in explained.hint(PermissionError())
    assert "123 bytes" in explained.hint(MemoryError())
    assert "docs/sandbox.md" in explained.hint(OSError(30, "Read-only file system"))
    assert explained.hint(OSError(2, "No such file")) == explained.hint(ValueError()) == ""
