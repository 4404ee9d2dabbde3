"""Flags of the sandbox: what goes together, what is refused and how."""

from __future__ import annotations

import pytest

from isochrone.cli.processes.flags import sandbox
from isochrone.cli.processes.flags.sandbox import read_sandbox
from isochrone.errors import FlagError
from isochrone.secure.sandbox.settings import default_memory
from isochrone.secure.sandbox.support import Support
from isochrone.secure.sandbox.trial import Trial


@pytest.fixture(autouse=True)
def _any_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "present_support", lambda: Support(6, True))
    monkeypatch.setattr(sandbox, "try_out", lambda support: Trial(own_user=True, temporary_files=True))


def test_nothing_is_confined_by_default() -> None:
    assert read_sandbox(False, False, (), (), ()) == (None, None)


def test_what_the_flags_say() -> None:
    settings, trusted = read_sandbox(True, False, ["network=web"], ["4GiB", "big=6442450944", "a=b=1KiB"], ["old"])
    assert settings is not None
    assert settings.memory_bytes == 4 << 30
    assert settings.memory_by_model == {"big": 6 << 30, "a=b": 1024}
    assert settings.grants == {"network": frozenset({"web"})}
    assert trusted == {"old"}
    plain, nobody = read_sandbox(True, False, (), (), ())
    assert plain is not None
    assert plain.memory_bytes == default_memory() > 0
    assert nobody == frozenset()


@pytest.mark.parametrize(
    ("flag", "given"),
    [
        ("--sandbox-best-effort", (False, True, (), (), ())),
        ("--sandbox-allow", (False, False, ["network=m"], (), ())),
        ("--sandbox-memory", (False, False, (), ["1GiB"], ())),
        ("--trust-model", (False, False, (), (), ["m"])),
    ],
)
def test_a_flag_without_a_sandbox_is_an_error(
    flag: str, given: tuple[bool, bool, tuple[str], tuple[str], tuple[str]]
) -> None:
    with pytest.raises(FlagError, match=f"{flag}: expected --sandbox beside it"):
        read_sandbox(*given)


@pytest.mark.parametrize("text", ["much", "m=", "m=0", "0", "-1"])
def test_memory_that_is_none_is_an_error(text: str) -> None:
    with pytest.raises(FlagError, match="--sandbox-memory"):
        read_sandbox(True, False, (), [text], ())


def test_a_kernel_without_landlock_needs_best_effort(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "present_support", lambda: Support(0, True))
    with pytest.raises(FlagError, match="Landlock"):
        read_sandbox(True, False, (), (), ())
    settings, _ = read_sandbox(True, True, (), (), ())
    assert settings is not None
    assert settings.support.landlock == 0
