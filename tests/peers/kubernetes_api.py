"""A real Kubernetes API server on loopback, with a real etcd behind it; scripts/build_kube_apiserver.sh builds it.

There is no scheduler and no controller manager: the engine manages pods itself, and ``loopback_kubelet`` runs them.
"""

from __future__ import annotations

import os
import signal
import ssl
import subprocess
import time
from pathlib import Path
from types import TracebackType

import httpx
import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from bench.control.etcd_cluster import EtcdCluster, loopback_members
from bench.ports import free_ports
from bench.worker.peers.process import HOST, PEERS, PeerUnavailable

BINARY = PEERS / "kubernetes" / "kube-apiserver"
_READY_SECONDS = 60.0
_ATTEMPTS = 5
_LOG = "kube-apiserver.log"
_TOKEN = "a-token-of-the-tests"


class ApiServer:
    """``with ApiServer(directory) as cluster``: ready when the block begins."""

    def __init__(self, directory: Path) -> None:
        if not BINARY.exists():
            raise PeerUnavailable("no kube-apiserver: make peers builds it on Debian 12")
        self._directory = directory
        self._etcd = EtcdCluster(directory / "etcd", loopback_members(1))
        self._port = 0
        self.kubeconfig = directory / "kubeconfig"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> ApiServer:
        self._directory.mkdir(parents=True, exist_ok=True)
        self._etcd.__enter__()
        try:
            self._start_on_a_free_port()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        self._etcd.__exit__()

    def _start_on_a_free_port(self) -> None:
        """It takes no port 0, and another process may take the chosen one first."""
        for _ in range(_ATTEMPTS):
            (self._port,) = free_ports(1)
            self._write_files()
            try:
                self.start()
                return
            except RuntimeError:
                self.kill()
                if "address already in use" not in (self._directory / _LOG).read_text(errors="replace"):
                    raise
                (self._directory / _LOG).unlink()
        raise PeerUnavailable(f"no port was free for the API server in {_ATTEMPTS} attempts")

    def start(self) -> None:
        """With the data that it had."""
        files = self._directory
        with (files / _LOG).open("ab") as log:
            self._process = subprocess.Popen(
                [
                    BINARY,
                    *("--etcd-servers", self._etcd.members[0].client_url),
                    *("--bind-address", HOST, "--advertise-address", HOST, "--secure-port", str(self._port)),
                    *("--cert-dir", files / "certificates", "--token-auth-file", files / "tokens.csv"),
                    *("--authorization-mode", "RBAC", "--service-cluster-ip-range", "10.0.0.0/24"),
                    *("--service-account-issuer", "https://kubernetes.default.svc"),
                    *("--service-account-key-file", files / "accounts.pub"),
                    *("--service-account-signing-key-file", files / "accounts.key"),
                    # It needs the controller manager, which makes the accounts' tokens.
                    *("--disable-admission-plugins", "ServiceAccount"),
                ],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
            )
        self._wait_ready()

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def pause(self) -> None:
        """It does not answer, and no connection ends."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGCONT)

    @property
    def store_url(self) -> str:
        """Its etcd, for the store of a fleet: they use different keys."""
        return self._etcd.url

    def client(self) -> httpx.Client:
        """Of the tests themselves, with all rights."""
        context = ssl.create_default_context(cafile=str(self._certificate))
        headers = {"Authorization": f"Bearer {_TOKEN}"}
        return httpx.Client(base_url=f"https://{HOST}:{self._port}", headers=headers, verify=context, timeout=60)

    @property
    def _certificate(self) -> Path:
        return self._directory / "certificates" / "apiserver.crt"

    def _wait_ready(self) -> None:
        ends = time.monotonic() + _READY_SECONDS
        while True:
            assert self._process is not None
            if self._process.poll() is not None or time.monotonic() > ends:
                lines = (self._directory / _LOG).read_text(errors="replace").splitlines()[-5:]
                raise RuntimeError("the API server did not become ready:\n" + "\n".join(lines))
            try:
                with self.client() as client:
                    if client.get("/readyz").text == "ok":
                        return
            except (httpx.TransportError, OSError):
                pass
            time.sleep(0.1)

    def _write_files(self) -> None:
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        (self._directory / "accounts.key").write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        (self._directory / "accounts.pub").write_bytes(
            key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
        )
        (self._directory / "tokens.csv").write_text(f'{_TOKEN},tests,tests,"system:masters"\n')
        (self._directory / "tokens.csv").chmod(0o600)
        cluster = {"server": f"https://{HOST}:{self._port}", "certificate-authority": str(self._certificate)}
        self.kubeconfig.write_text(
            yaml.safe_dump(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "clusters": [{"name": "tests", "cluster": cluster}],
                    "users": [{"name": "tests", "user": {"token": _TOKEN}}],
                    "contexts": [{"name": "tests", "context": {"cluster": "tests", "user": "tests"}}],
                    "current-context": "tests",
                }
            )
        )
