"""Finds mistakes in kubeconfig files before anything is written or connected, in words that name the file.

The client library would take a named file that does not exist as none, and try the pod's service account.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

import yaml

from isochrone.errors import FlagError, InvalidArgument

VARIABLE = "KUBECONFIG"
_HOME = "~/.kube/config"
_SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")
_KEYS = ("clusters", "contexts", "current-context")


def check_client() -> None:
    """Raise ``FlagError`` if the client library is not installed."""
    if find_spec("kr8s") is None:
        expected = "the Kubernetes client for this engine: pip install 'isochrone[kubernetes]'"
        raise FlagError("--engine kubernetes", expected, "no package kr8s")


def check_kubeconfig(named: Path | None, service_account: Path = _SERVICE_ACCOUNT) -> None:
    """``named``: by --kubeconfig. Raise ``InvalidArgument`` for files that cannot lead to a cluster."""
    if named is not None:
        if not named.is_file():
            reason = "is a directory" if named.is_dir() else "no such file"
            raise InvalidArgument(f"--kubeconfig: {named}: {reason}")
        _check(named, "--kubeconfig")
        return
    variable = os.environ.get(VARIABLE, "")
    found = [path for text in (variable or _HOME).split(":") if (path := Path(text).expanduser()).is_file()]
    if not found and not service_account.is_file():
        place = f"{VARIABLE}={variable} names no file" if variable else f"there is no {_HOME}"
        raise FlagError("--kubeconfig", "a file with the address of the cluster", f"none; {place}, and this is no pod")
    # The first of several files need not be whole.
    if len(found) == 1:
        _check(found[0], VARIABLE if variable else "kubeconfig")


def _check(path: Path, source: str) -> None:
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidArgument(f"{source}: {path}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError):
        data = None
    if not isinstance(data, dict):
        raise InvalidArgument(
            f"{source}: {path}: not a kubeconfig file: expected a YAML mapping with {', '.join(_KEYS)}"
        )
    if missing := [key for key in _KEYS if not data.get(key)]:
        raise InvalidArgument(f"{source}: {path}: not a kubeconfig file: it has no {', no '.join(missing)}")
