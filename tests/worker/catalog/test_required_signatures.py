"""Workers that require signatures: what is not as somebody trusted signed it is never loaded, nor run in part.

Real keys, real models in a real repository, on a real loop. The models' code leaves a trace when it runs.
"""

from __future__ import annotations

import asyncio
import gc
import os
import py_compile
import shutil
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from isochrone.errors import IsochroneError
from isochrone.models.repository.description import ModelDescription
from isochrone.models.repository.digest import digest
from isochrone.models.repository.repository import Repository
from isochrone.models.repository.signed import copies
from isochrone.models.repository.signed.copies import VerifiedCopies
from isochrone.secure.signing.signed_version import SignatureRefused
from isochrone.secure.signing.signer import Signer
from isochrone.worker.catalog.catalog import Catalog
from isochrone.worker.catalog.load_parameters import LoadParameters
from isochrone.worker.catalog.loading import prepare
from isochrone.worker.catalog.polling import poll
from sample_models import write_config, write_python
from signed_models import sign_version
from signing_keys import Key, make_key

_CONFIG = """
    backend: "python"
    max_batch_size: 4
    input { name: "x" data_type: TYPE_FP32 dims: [1] }
    output { name: "y" data_type: TYPE_FP32 dims: [1] label_filename: "labels.txt" }
    version_policy { all {} }
"""
#: Importing it leaves a trace.
_SOURCE = """
    import pathlib
    pathlib.Path({trace!r}).touch()

    class Model:
        def infer(self, inputs):
            return {{"y": inputs["x"] * {factor}}}
"""
_ENSEMBLE = """
    platform: "ensemble"
    max_batch_size: 4
    input { name: "x" data_type: TYPE_FP32 dims: [1] }
    output { name: "y" data_type: TYPE_FP32 dims: [1] }
    ensemble_scheduling { step { model_name: "m" model_version: -1
      input_map { key: "x" value: "x" } output_map { key: "y" value: "y" } } }
"""


class Bench:
    """A repository with model m, which version 1 of is signed, and a worker's catalog that trusts the key."""

    def __init__(self, root: Path) -> None:
        self.key: Key = make_key(root)
        self.signer = Signer(self.key.private)
        self.repository = root / "models"
        self.model = self.repository / "m"
        self.trace = root / "trace"
        write_config(self.model, _CONFIG)
        (self.model / "labels.txt").write_text("cat\n")
        self.write(1)
        (self.model / "1" / "weights.bin").write_bytes(bytes(range(256)))
        sign_version(self.signer, self.model)

    def write(self, version: int, factor: int = 2, trace: Path | None = None) -> None:
        write_python(self.model, _SOURCE.format(trace=str(trace or self.trace), factor=factor), version)

    def read(self, name: str = "m") -> ModelDescription:
        return self.opened().read(name)

    def opened(self, **options: str) -> Repository:
        return Repository([self.repository], **options, verified=VerifiedCopies([self.key.public]))  # type: ignore[arg-type]

    def run(self, scenario: Callable[[Catalog], Awaitable[None]]) -> None:
        async def play() -> None:
            catalog = Catalog(self.opened(), None, 30)
            try:
                await scenario(catalog)
            finally:
                await catalog.close(5)

        asyncio.run(asyncio.wait_for(play(), 100))

    def refused(self, reason: str, name: str = "m") -> None:
        """A load fails for this reason, the index says so, and no code has run."""

        async def scenario(catalog: Catalog) -> None:
            with pytest.raises(IsochroneError, match=reason):
                await catalog.load(name)
            assert not catalog.versions(name)
            assert reason.replace("\\", "") in (catalog.failure(name) or "")

        self.run(scenario)
        assert not self.trace.exists()


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    copied = tmp_path / "copies"
    copied.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(copied))
    yield Bench(tmp_path)
    # An unload freezes what is in use then: this catalog.
    gc.unfreeze()
    # The last reference may be that of a thread that ends.
    ends = time.monotonic() + 20
    while list(copied.iterdir()) and time.monotonic() < ends:
        gc.collect()
        time.sleep(0.005)
    assert list(copied.iterdir()) == []


# What is as it was signed.


def test_a_signed_version_is_served_with_its_provenance_and_its_own_digest(bench: Bench) -> None:
    own = Repository([bench.repository]).read("m")

    async def scenario(catalog: Catalog) -> None:
        await catalog.load("m")
        (served,) = catalog.versions("m")
        # Of the same bytes as without signatures: a fleet compares it with workers that require none.
        assert served.digest == digest(own.config, own.versions[1])
        provenance = catalog.provenance("m", "1")
        assert provenance is not None
        assert provenance.signer.startswith("key sha256:")
        await catalog.unload("m")
        assert catalog.provenance("m", "1") is None

    bench.run(scenario)
    assert bench.trace.exists()


def test_signing_changes_no_digest(bench: Bench) -> None:
    own = Repository([bench.repository]).read("m")
    before = digest(own.config, own.versions[1])
    (bench.model / "1.sig").unlink()
    own = Repository([bench.repository]).read("m")
    assert digest(own.config, own.versions[1]) == before
    assert own.ignored == ()


def test_links_in_a_version_are_followed_and_their_bytes_count(bench: Bench) -> None:
    elsewhere = bench.repository.parent / "weights.bin"
    shutil.move(bench.model / "1" / "weights.bin", elsewhere)
    (bench.model / "1" / "weights.bin").symlink_to(elsewhere)
    assert bench.read().private_copy is not None
    elsewhere.write_bytes(b"other")
    bench.refused("'1/weights.bin' has other bytes")


def test_a_version_is_copied_again_only_after_a_change(bench: Bench) -> None:
    for path in bench.model.rglob("*"):
        # Old enough that a stamp proves that nothing was written since.
        os.utime(path, (1, 1))
    repository = bench.opened()
    first, second = repository.read("m"), repository.read("m")
    assert first.private_copy is second.private_copy
    bench.write(1, factor=5)
    sign_version(bench.signer, bench.model)
    third = repository.read("m")
    assert third.versions[1] != first.versions[1]
    assert "* 5" in (third.versions[1] / "model.py").read_text()
    assert "* 2" in (first.versions[1] / "model.py").read_text()


def test_a_copy_is_removed_with_its_last_description(bench: Bench) -> None:
    repository = bench.opened()
    described = repository.read("m")
    directory = described.directory
    again = repository.read("m")
    del described
    gc.collect()
    del again
    gc.collect()
    assert not directory.exists()


def test_errors_name_the_repository_and_not_the_copy(bench: Bench) -> None:
    write_config(bench.model, _CONFIG.replace("TYPE_FP32", "TYPE_FP23"))
    # Such a configuration cannot be signed by the command.
    bench.refused("expected one of TYPE")
    write_config(bench.model, _CONFIG.replace("dims: [1] label", "label"))
    sign_version(bench.signer, bench.model)
    with pytest.raises(IsochroneError) as error:
        bench.read()
    assert str(bench.model / "config.pbtxt") in str(error.value)


# What is not.


def test_an_unsigned_version_is_refused(bench: Bench) -> None:
    (bench.model / "1.sig").unlink()
    bench.refused("it is not signed, there is no 1.sig beside it")


def test_one_changed_byte_of_the_weights_is_refused(bench: Bench) -> None:
    weights = bench.model / "1" / "weights.bin"
    content = bytearray(weights.read_bytes())
    content[100] ^= 1
    weights.write_bytes(content)
    bench.refused("'1/weights.bin' has other bytes")


def test_changed_code_is_refused_and_does_not_run(bench: Bench) -> None:
    bench.write(1, factor=3)
    bench.refused("'1/model.py' has other bytes")


def test_code_that_completes_its_configuration_does_not_run_before_it_is_verified(bench: Bench) -> None:
    write_config(bench.model, 'backend: "python"\n')
    sign_version(bench.signer, bench.model)
    bench.write(1, factor=3)
    bench.refused("'1/model.py' has other bytes")


def test_a_changed_configuration_is_refused(bench: Bench) -> None:
    write_config(bench.model, _CONFIG + 'parameters { key: "deadline_ms" value { string_value: "1" } }\n')
    bench.refused("'config.pbtxt' has other bytes")


def test_changed_labels_are_refused(bench: Bench) -> None:
    (bench.model / "labels.txt").write_text("dog\n")
    bench.refused("'labels.txt' has other bytes")


def test_an_added_file_is_refused(bench: Bench) -> None:
    (bench.model / "1" / "sitecustomize.py").write_text(f"open({str(bench.trace)!r}, 'w')")
    bench.refused("'1/sitecustomize.py' is not among the files")


def test_an_added_configuration_is_refused(bench: Bench) -> None:
    (bench.model / "configs").mkdir()
    (bench.model / "configs" / "edge.pbtxt").write_text('backend: "python"\n')
    with pytest.raises(SignatureRefused, match=r"'configs/edge\.pbtxt' is not among the files"):
        bench.opened(config_name="edge").read("m")


def test_a_removed_file_is_refused(bench: Bench) -> None:
    (bench.model / "1" / "weights.bin").unlink()
    bench.refused("'1/weights.bin', which key sha256:")


def test_a_link_in_place_of_a_file_is_refused(bench: Bench) -> None:
    weights = bench.model / "1" / "weights.bin"
    weights.unlink()
    weights.symlink_to("/etc/passwd")
    bench.refused("'1/weights.bin' has other bytes")


def test_a_pipe_in_place_of_a_file_is_refused_and_not_waited_for(bench: Bench) -> None:
    weights = bench.model / "1" / "weights.bin"
    weights.unlink()
    os.mkfifo(weights)
    bench.refused("'1/weights.bin', which key sha256:")


def test_a_file_larger_than_the_disk_is_refused_before_it_is_copied(bench: Bench) -> None:
    with (bench.model / "1" / "weights.bin").open("r+b") as file:
        file.truncate(1 << 43)
    bench.refused("cannot be copied to")


def test_compiled_code_beside_signed_code_is_not_run(bench: Bench) -> None:
    """Python would run the cache of a module in its place, and no digest covers caches."""
    trace = bench.repository.parent / "evil"
    source = bench.model / "1" / "model.py"
    original = source.read_bytes()
    bench.write(1, factor=7, trace=trace)
    # Such a cache counts whatever the source is.
    py_compile.compile(str(source), doraise=True, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
    source.write_bytes(original)

    async def scenario(catalog: Catalog) -> None:
        await catalog.load("m")

    bench.run(scenario)
    assert bench.trace.exists()
    assert not trace.exists()


def test_the_signature_of_another_version_is_refused(bench: Bench) -> None:
    shutil.copytree(bench.model / "1", bench.model / "2")
    shutil.copy(bench.model / "1.sig", bench.model / "2.sig")
    bench.refused("its signature is that of m/1")


def test_the_signature_of_another_model_is_refused(bench: Bench) -> None:
    other = bench.repository / "other"
    shutil.copytree(bench.model, other)
    (other / "config.pbtxt").write_text((bench.model / "config.pbtxt").read_text().replace('name: "m"', ""))
    bench.refused("its signature is that of m/1", "other")


def test_a_version_signed_with_another_key_is_refused(bench: Bench, tmp_path: Path) -> None:
    sign_version(Signer(make_key(tmp_path, "mallory").private), bench.model)
    bench.refused("it is signed with a key that is not trusted")


@pytest.mark.parametrize("content", [b"", b"{}", b"\0" * 100, b"x" * ((16 << 20) + 1)], ids=len)
def test_a_signature_file_that_is_none_is_refused(bench: Bench, content: bytes) -> None:
    (bench.model / "1.sig").write_bytes(content)
    bench.refused("the signature is")


def test_a_truncated_signature_is_refused(bench: Bench) -> None:
    path = bench.model / "1.sig"
    path.write_bytes(path.read_bytes()[:-20])
    bench.refused("the signature is no Sigstore bundle")


def test_a_signature_that_is_a_pipe_is_refused_and_not_waited_for(bench: Bench) -> None:
    (bench.model / "1.sig").unlink()
    os.mkfifo(bench.model / "1.sig")
    bench.refused("1.sig is not a regular file")


def test_a_signature_that_lists_a_path_outside_the_model_is_refused(bench: Bench) -> None:
    (bench.model / "1.sig").write_bytes(bench.signer.sign("m", 1, {"../../etc/passwd": "aa" * 32}))
    bench.refused("leads out of the model")


def test_an_unsigned_step_keeps_its_ensemble_from_loading(bench: Bench) -> None:
    write_config(bench.repository / "graph", _ENSEMBLE)
    (bench.repository / "graph" / "1").mkdir()
    sign_version(bench.signer, bench.repository / "graph")

    async def scenario(catalog: Catalog) -> None:
        await catalog.load("graph")
        assert [each.model_name for each in catalog.all_versions()] == ["graph", "m"]

    bench.run(scenario)
    bench.trace.unlink()
    (bench.model / "1.sig").unlink()

    async def refused(catalog: Catalog) -> None:
        with pytest.raises(IsochroneError):
            await catalog.load("graph")
        assert catalog.all_versions() == []

    bench.run(refused)
    assert not bench.trace.exists()


# Loads that bring their own.


@pytest.mark.parametrize(
    "parameters",
    [LoadParameters(config="{}"), LoadParameters(config="{}", files={"file:1/model.py": b"class Model: ..."})],
    ids=["configuration", "files"],
)
def test_overrides_of_a_load_request_are_refused(bench: Bench, parameters: LoadParameters) -> None:
    async def scenario(catalog: Catalog) -> None:
        with pytest.raises(IsochroneError, match="nobody signed the configuration and files of a load request"):
            await catalog.load_alone("m", parameters)
        assert not catalog.versions("m")

    bench.run(scenario)
    assert not bench.trace.exists()


def test_versions_of_a_load_request_are_verified(bench: Bench) -> None:
    bench.write(2)

    async def scenario(catalog: Catalog) -> None:
        await catalog.load("m", {"versions": "1"})
        with pytest.raises(IsochroneError, match="version 2 is refused"):
            await catalog.load("m", {"versions": "1,2"})
        # It keeps serving, and the index says why the other does not.
        ((_, version, state, reason),) = catalog.index()
        assert (version, state) == ("1", "READY")
        assert "version 2 is refused: it is not signed" in reason

    bench.run(scenario)


def test_polling_loads_a_version_when_its_signature_arrives(bench: Bench) -> None:
    (bench.model / "1.sig").unlink()

    async def scenario(catalog: Catalog) -> None:
        await poll(catalog)
        assert catalog.versions("m") == []
        sign_version(bench.signer, bench.model)
        await poll(catalog)
        assert [each.number for each in catalog.versions("m")] == [1]

    bench.run(scenario)


# Changes between verification and load.


def test_what_is_written_after_the_verification_is_not_loaded(bench: Bench, tmp_path: Path) -> None:
    description = bench.read()
    evil = tmp_path / "evil"
    bench.write(1, trace=evil)
    write_config(bench.model, "backend: 3")
    prepared = prepare(description, 1)
    prepared.discard()
    assert bench.trace.exists()
    assert not evil.exists()


@pytest.mark.parametrize("file", ["1/model.py", "config.pbtxt", "labels.txt"])
def test_a_file_that_is_swapped_after_its_signature_was_read_is_refused(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    read = copies.read_signature

    def swapping(*arguments: object) -> object:
        signed = read(*arguments)  # type: ignore[arg-type]
        other = bench.model / "other"
        other.write_bytes(b"\n" + (bench.model / file).read_bytes())
        other.rename(bench.model / file)
        return signed

    monkeypatch.setattr(copies, "read_signature", swapping)
    bench.refused(f"'{file}' has other bytes")


def test_trust_that_is_withdrawn_counts_at_the_next_load(bench: Bench, tmp_path: Path) -> None:
    async def scenario(catalog: Catalog) -> None:
        await catalog.load("m")
        bench.key.public.write_bytes(make_key(tmp_path, "successor").public.read_bytes())
        with pytest.raises(IsochroneError, match="not trusted"):
            await catalog.load("m")

    bench.run(scenario)


def test_what_a_killed_worker_left_is_removed_by_the_next(bench: Bench) -> None:
    left = Path(tempfile.gettempdir()) / "isochrone-verified-left"
    left.mkdir()
    (left / "lock").touch()
    (left / "weights.bin").touch()
    repository = bench.opened()
    described = repository.read("m")
    assert not left.exists()
    # The directories of others that run stay.
    other = bench.opened()
    again = other.read("m")
    assert described.directory.exists()
    assert again.directory.exists()


def test_models_of_one_name_in_two_repositories_are_verified_each(bench: Bench, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(bench.repository, other)
    repository = Repository([bench.repository, other], namespacing=True, verified=VerifiedCopies([bench.key.public]))
    found = repository.read("other::m")
    assert found.config_source == str(other / "m" / "config.pbtxt")
    (other / "m" / "labels.txt").write_text("dog\n")
    with pytest.raises(SignatureRefused, match=r"'labels\.txt' has other bytes"):
        repository.read("other::m")
    assert list(repository.read("models::m").provenance) == [1]


def test_versions_of_different_configurations_are_not_mixed(bench: Bench) -> None:
    """Version 1 was signed with a configuration that is gone: only 2, signed with the new one, may be loaded."""
    bench.write(2)
    write_config(bench.model, _CONFIG.replace("max_batch_size: 4", "max_batch_size: 8"))
    sign_version(bench.signer, bench.model, 2)
    repository = bench.opened()
    assert repository.read("m", versions=[2]).config.max_batch_size == 8
    with pytest.raises(SignatureRefused, match=r"'config\.pbtxt' has other bytes"):
        repository.read("m", versions=[1, 2])


def test_a_signed_version_policy_counts_and_no_other(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """What an unsigned configuration selects for a moment is not served against the signed one."""
    bench.write(2)
    write_config(bench.model, _CONFIG.replace("all {}", "specific { versions: [2] }"))
    for version in (1, 2):
        sign_version(bench.signer, bench.model, version)
    repository = bench.opened()
    with monkeypatch.context() as patched:
        patched.setattr(repository._describer, "to_verify", lambda *_: [1])
        with pytest.raises(IsochroneError, match="at least one version must be available"):
            repository.read("m")
