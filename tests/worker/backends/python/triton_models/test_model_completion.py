"""Models that complete their own configuration: in workers, and where no model runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from isochrone.errors import ConfigError, ModelFailed
from isochrone.models.repository.digest import digest
from isochrone.models.repository.repository import Repository
from isochrone.worker.backends.python.triton.completion import completed_by_model

_HEAD = "import triton_python_backend_utils as pb_utils\n\n\nclass TritonPythonModel:\n"
_COMPLETES = """    @staticmethod
    def auto_complete_config(config):
        print("this is not the answer")
        config.add_input({"name": "x", "data_type": "TYPE_FP32", "dims": [-1], "optional": True})
        config.add_output({"name": "y", "data_type": "TYPE_INT64", "dims": [2, 3]})
        config.set_max_batch_size(4)
        config.set_dynamic_batching()
        config.set_model_transaction_policy({"decoupled": True})
        return config
"""


def write_model(root: Path, body: str, config: str = "") -> Path:
    version = root / "models" / "m" / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_text(_HEAD + body)
    if config:
        (version.parent / "config.pbtxt").write_text(config)
    return root / "models"


def repository(path: Path) -> Repository:
    return Repository([path], self_completion=completed_by_model)


def test_a_model_without_a_configuration_completes_it(tmp_path: Path) -> None:
    description = repository(write_model(tmp_path, _COMPLETES)).read("m")
    config = description.config
    assert (config.max_batch_size, config.HasField("dynamic_batching")) == (4, True)
    assert config.model_transaction_policy.decoupled
    assert [(each.name, list(each.dims), each.optional) for each in config.input] == [("x", [-1], True)]
    assert [(each.name, each.datatype) for each in description.signature.outputs] == [("y", "INT64")]
    assert any("auto_complete_config" in sentence for sentence in description.assumed)


def test_where_no_model_runs_the_digest_is_the_same(tmp_path: Path) -> None:
    path = write_model(tmp_path, _COMPLETES, 'backend: "python"')
    served, read = repository(path).read("m"), Repository([path]).read("m")
    assert not read.config.input
    digests = {digest(each.digested_config(1), each.versions[1]) for each in (served, read)}
    assert len(digests) == 1
    # The written configuration counts.
    (path / "m" / "config.pbtxt").write_text('backend: "python" max_batch_size: 2')
    changed = Repository([path]).read("m")
    assert digest(changed.digested_config(1), changed.versions[1]) not in digests


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (
            "    @staticmethod\n    def auto_complete_config(config):\n        raise ValueError('no')\n",
            "ValueError: no\n\nAt",
        ),
        ("    @staticmethod\n    def auto_complete_config(config):\n        return 5\n", "valid pb.ModelConfig object"),
        (
            "    @staticmethod\n    def auto_complete_config(config):\n        import os\n\n        os._exit(3)\n",
            "code 3",
        ),
        ("    auto_complete_config = 5\n", "TypeError"),
    ],
)
def test_a_function_that_fails_fails_the_load_with_its_text(tmp_path: Path, body: str, error: str) -> None:
    with pytest.raises(ModelFailed, match=error):
        repository(write_model(tmp_path, body)).read("m")


def test_what_the_file_states_stays(tmp_path: Path) -> None:
    config = 'backend: "python" input [ { name: "x" data_type: TYPE_INT32 dims: [ -1 ] } ]'
    with pytest.raises(ModelFailed, match="configuration expects datatype TYPE_INT32 for input 'x'"):
        repository(write_model(tmp_path, _COMPLETES, config)).read("m")


def test_a_completed_configuration_is_validated(tmp_path: Path) -> None:
    body = "    @staticmethod\n    def auto_complete_config(config):\n        return config\n"
    with pytest.raises(ConfigError, match="at least one input"):
        repository(write_model(tmp_path, body)).read("m")
