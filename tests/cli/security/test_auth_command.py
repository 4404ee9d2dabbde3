"""``isochrone auth check``: names that are not in the file are errors, not callers without a role."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from isochrone.cli.main import app


def check(file: Path, who: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["auth", "check", str(file), who, "inference"])
    return result.exit_code, result.output


def write(directory: Path, *names: str) -> Path:
    path = directory / "access.yaml"
    tokens = ", ".join(f"{name}: {{sha256: {number:a>64x}}}" for number, name in enumerate(names))
    path.write_text(f"tokens: {{{tokens}}}\nassign: [{{to: ['token:robots'], roles: [caller]}}]\n" if names else "{}")
    return path


def test_a_mistyped_token_is_none_of_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, "robots", "nobody")
    assert check(path, "token:robots")[0] == 0
    code, said = check(path, "token:nobody")
    assert (code, "denied: token:nobody has no role" in said) == (1, True)
    code, said = check(path, "token:robot")
    assert code == 1
    assert f"WHO: expected a token of {path}: token:nobody or token:robots (did you mean 'token:robots'?)" in said
    assert "given 'token:robot'" in said


@pytest.mark.parametrize("who", ["token:n17", "token:zzzzzzzzz"])
def test_a_file_of_many_tokens_lists_near_ones(tmp_path: Path, who: str) -> None:
    path = write(tmp_path, "robots", *(f"name{number}" for number in range(17)), "nn17")
    code, said = check(path, who)
    assert code == 1
    assert f"one of the 19 tokens of {path}" in said
    assert ("did you mean 'token:nn17'" in said) == (who == "token:n17")


def test_a_file_without_tokens_says_so(tmp_path: Path) -> None:
    path = tmp_path / "access.yaml"
    path.write_text("anonymous: [health]\n")
    assert f"expected a token of {path}, which has none, given 'token:robots'" in check(path, "token:robots")[1]
    # Others are known to their provider, or by their certificate.
    assert "denied: oidc:plant/ada has no role" in check(path, "oidc:plant/ada")[1]


@pytest.mark.parametrize(
    ("record", "said"),
    [
        ("revoked: true", "denied: token:robots is revoked"),
        ("expires: 2025-06-01", "denied: token:robots has expired"),
        ("expires: 2999-06-01", "allowed: role 'caller' of token:robots"),
    ],
)
def test_a_token_that_servers_refuse_is_denied(tmp_path: Path, record: str, said: str) -> None:
    file = tmp_path / "access.yaml"
    assign = "assign: [{to: ['token:robots'], roles: [caller]}]"
    file.write_text(f"tokens: {{robots: {{sha256: '{'0' * 64}', {record}}}}}\n{assign}\n")
    result = CliRunner().invoke(app, ["auth", "check", str(file), "token:robots", "inference"])
    assert result.output.startswith(said)
    assert result.exit_code == (0 if said.startswith("allowed") else 1)


@pytest.mark.parametrize(("who", "said"), [("robots", "did you mean 'token:robots'?"), ("tokens:robots", "token:NAME")])
def test_a_caller_of_no_kind_is_refused(tmp_path: Path, who: str, said: str) -> None:
    file = tmp_path / "access.yaml"
    file.write_text(f"tokens: {{robots: {{sha256: '{'0' * 64}'}}}}\n")
    result = CliRunner().invoke(app, ["auth", "check", str(file), who, "inference"])
    assert result.exit_code == 1
    assert said in result.output
