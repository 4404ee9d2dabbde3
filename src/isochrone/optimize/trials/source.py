"""The float model to begin from: an ONNX file alone, or a version of a model in a repository.

By default it is the newest version that ``isochrone optimize`` did not write: drops of accuracy would add up over
results of results.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from isochrone.errors import ConfigError, NotFound
from isochrone.models.configuration.backends import backend_name
from isochrone.models.configuration.pbtxt import parse_text
from isochrone.models.repository.names import is_model_name, validate_model_name
from isochrone.models.repository.versions import find_versions, version_number
from isochrone.optimize.searching.candidate import OPENVINO, RunSettings
from isochrone.optimize.thread_parameters import drop_parameter, drop_threads, set_threads, stated_threads
from isochrone.optimize.trials.origins import is_optimized

CONFIG_FILE = "config.pbtxt"
_ONNX_FILE = "model.onnx"


@dataclass(frozen=True, slots=True)
class Source:
    name: str
    """The model's name; of a file alone, that of the file."""
    file: Path
    config: Any
    """Its ``ModelConfig`` as it is written; empty for a file alone."""
    batch_size_stated: bool = False
    directory: Path | None = None
    """The model's directory in its repository; None for a file alone."""
    version: int = 0

    @property
    def filename(self) -> str:
        return str(self.config.default_model_filename) or _ONNX_FILE

    @property
    def on_gpu(self) -> bool:
        return any(group.kind == group.KIND_GPU for group in self.config.instance_group)

    @property
    def settings(self) -> RunSettings:
        """Those of its configuration."""
        return RunSettings(threads=stated_threads(self.config, "onnx") or 1)

    def neighbours(self) -> list[Path]:
        """Files and directories beside the versions that the configuration may name: labels, warm-up data."""
        if self.directory is None:
            return []
        entries = [each for each in self.directory.iterdir() if each.name != CONFIG_FILE]
        return [each for each in entries if version_number(each.name) is None]


def of_file(path: Path) -> Source:
    """A file; if it is the file of a version in a repository, that model."""
    if not path.exists():
        raise ConfigError(
            str(path), "model", "an .onnx file, or a model's name with --model-repository", "no such file"
        )
    absolute = path.absolute()
    is_version = version_number(absolute.parent.name) is not None
    if is_version and (absolute.parent.parent / CONFIG_FILE).is_file():
        source = _of_version(absolute.parent.parent, int(absolute.parent.name))
        if absolute not in (source.file, source.file.parent):
            expected = f"the file that its config.pbtxt names, {source.file}; a copy elsewhere is a file alone"
            raise ConfigError(str(path), "model", expected, "another one")
        return source
    if path.is_dir():
        raise ConfigError(str(path), "model", "an .onnx file, or a model's name with --model-repository", "a directory")
    name = path.stem if is_model_name(path.stem) else "model"
    return Source(name, absolute, model_config_pb2.ModelConfig())


def of_repository(repository: Path, name: str, version: int | None = None) -> Source:
    """The given version, or the newest that ``isochrone optimize`` did not write."""
    validate_model_name(name)
    if not repository.is_dir():
        raise ConfigError("--model-repository", str(repository), "a directory", "nothing there")
    directory = repository.absolute() / name
    if not directory.is_dir():
        raise NotFound(f"--model-repository {repository}: expected a model '{name}', given none of that name")
    present = find_versions(directory).present
    if not present:
        raise ConfigError(str(directory), "versions", "at least one version directory, such as '1'", "none")
    numbers = ", ".join(map(str, present))
    if version is not None:
        if version not in present:
            raise ConfigError("--version", "number", f"a version of '{name}': {numbers}", str(version))
        return _of_version(directory, version)
    own = [each for each in present if not is_optimized(directory, each)]
    if not own:
        expected = "a version that isochrone optimize did not write; --version N begins from one that it wrote"
        raise ConfigError(str(directory), "versions", expected, numbers)
    return _of_version(directory, own[-1])


def _of_version(directory: Path, version: int) -> Source:
    file = directory / CONFIG_FILE
    config, stated = model_config_pb2.ModelConfig(), False
    if file.is_file():
        config, stated = parse_text(file.read_bytes(), str(file))
        is_told = bool(config.backend or config.platform or config.HasField("ensemble_scheduling"))
        if is_told and backend_name(config, str(file)) != "onnx":
            raise ConfigError(str(file), "backend", "'onnxruntime': other models are not optimized", config.backend)
    model = directory / str(version) / (config.default_model_filename or _ONNX_FILE)
    if model.is_dir():
        model = model / _ONNX_FILE  # a model with external data is a directory of that name
    if not model.is_file():
        raise ConfigError(str(model), "model file", "an onnx file", "no such file")
    return Source(directory.name, model, config, stated, directory, version)


def config_text(
    source: Source, name: str, settings: RunSettings, *, on_gpu: bool = False, batch: int | None = None
) -> str:
    """The config.pbtxt of a model ``name`` that runs with ``settings`` and is otherwise as the source.

    ``batch`` is the largest batch of a model whose configuration says nothing of it.
    """
    config = model_config_pb2.ModelConfig()
    config.CopyFrom(source.config)
    config.name = name
    config.ClearField("version_policy")
    config.platform = ""
    config.default_model_filename = source.filename
    drop_threads(config)
    drop_parameter(config, "HINT_BF16")
    if settings.runtime == OPENVINO:
        config.backend = "openvino"
        set_threads(config, "openvino", settings.threads)
        if settings.bf16:
            config.parameters["HINT_BF16"].string_value = "true"
    else:
        config.backend = "onnxruntime"
        if settings.threads != 1:
            set_threads(config, "onnx", settings.threads)
    if on_gpu and not source.on_gpu:
        del config.instance_group[:]  # groups on the CPU beside it would answer, too
        config.instance_group.add(kind=model_config_pb2.ModelInstanceGroup.KIND_GPU, count=1)
    if batch is not None and not source.batch_size_stated:
        config.max_batch_size = batch
    text: str = text_format.MessageToString(config)
    # Zero is not printed, and stated it means that the model takes no batches.
    return text + ("max_batch_size: 0\n" if source.batch_size_stated and not config.max_batch_size else "")
