"""Kubeconfig files that cannot lead to a cluster: errors name the file and what is missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from isochrone.engines.kubernetes.pods.kubeconfig import VARIABLE, check_client, check_kubeconfig
from isochrone.errors import FlagError, InvalidArgument

WHOLE = "clusters: [{name: a}]\ncontexts: [{name: a}]\ncurrent-context: a\n"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("name: demo\n", "it has no clusters, no contexts, no current-context"),
        (WHOLE.replace("current-context: a", ""), "it has no current-context"),
        ("- a\n", "expected a YAML mapping with clusters, contexts, current-context"),
        ("a: [", "expected a YAML mapping with clusters, contexts, current-context"),
    ],
)
def test_a_file_that_is_no_kubeconfig(text: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    with pytest.raises(InvalidArgument) as caught:
        check_kubeconfig(path)
    assert str(caught.value) == f"--kubeconfig: {path}: not a kubeconfig file: {reason}"
    monkeypatch.setenv(VARIABLE, str(path))
    with pytest.raises(InvalidArgument) as caught:
        check_kubeconfig(None)
    assert str(caught.value) == f"KUBECONFIG: {path}: not a kubeconfig file: {reason}"


def test_a_named_file_must_exist(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"--kubeconfig: .*none: no such file$"):
        check_kubeconfig(tmp_path / "none")
    with pytest.raises(InvalidArgument, match=r"--kubeconfig: .*: is a directory$"):
        check_kubeconfig(tmp_path)
    (tmp_path / "config").write_text(WHOLE)
    check_kubeconfig(tmp_path / "config")


def test_without_a_file_only_a_pod_has_a_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv(VARIABLE, raising=False)
    token = tmp_path / "token"
    with pytest.raises(FlagError, match=r"given none; there is no ~/\.kube/config, and this is no pod$"):
        check_kubeconfig(None, token)
    monkeypatch.setenv(VARIABLE, "/nope:/neither")
    with pytest.raises(FlagError, match=r"given none; KUBECONFIG=/nope:/neither names no file, and this is no pod$"):
        check_kubeconfig(None, token)
    token.write_text("secret")
    check_kubeconfig(None, token)


def test_the_client_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("isochrone.engines.kubernetes.pods.kubeconfig.find_spec", lambda name: None)
    with pytest.raises(FlagError, match=r"--engine kubernetes: expected the Kubernetes client .*given no package kr8s"):
        check_client()
