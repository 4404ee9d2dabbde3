"""``pb_utils.ModelConfig``: the configuration that ``auto_complete_config`` of a model completes."""

from __future__ import annotations

import json
from typing import Any

_TENSOR_KEYS = ("name", "data_type", "dims")


class ModelConfig:
    """A configuration as JSON; what the file states cannot be changed."""

    def __init__(self, model_config: str) -> None:
        self._model_config: dict[str, Any] = json.loads(model_config)

    def as_dict(self) -> dict[str, Any]:
        return self._model_config

    def set_max_batch_size(self, max_batch_size: int) -> None:
        stated = self._model_config["max_batch_size"]
        if stated > max_batch_size:
            raise ValueError(
                f"configuration specified max_batch_size {stated}, but in auto-complete-config function for model"
                f" '{self._name}' specified max_batch_size {max_batch_size}"
            )
        self._model_config["max_batch_size"] = max_batch_size

    def set_dynamic_batching(self) -> None:
        for scheduler in ("sequence_batching", "ensemble_scheduling"):
            if scheduler in self._model_config:
                raise ValueError(
                    f"Configuration specified scheduling_choice as '{scheduler}', but auto-complete-config function for"
                    f" model '{self._name}' tries to set scheduling_choice as 'dynamic_batching'"
                )
        self._model_config.setdefault("dynamic_batching", {})

    def add_input(self, input: dict[str, Any]) -> None:
        self._add("input", input, (*_TENSOR_KEYS, "optional"))

    def add_output(self, output: dict[str, Any]) -> None:
        self._add("output", output, _TENSOR_KEYS)

    def set_model_transaction_policy(self, transaction_policy_dict: dict[str, Any]) -> None:
        if any(key != "decoupled" for key in transaction_policy_dict):
            raise ValueError(
                f"model transaction property in auto-complete-config function for model '{self._name}' contains"
                " property other than 'decoupled'."
            )
        policy = self._model_config.setdefault("model_transaction_policy", {})
        if "decoupled" not in transaction_policy_dict:
            return
        decoupled = transaction_policy_dict["decoupled"]
        if policy.get("decoupled", decoupled) != decoupled:
            raise ValueError(
                f"trying to change decoupled property in auto-complete-config for model '{self._name}', which is"
                f" already set to '{policy['decoupled']}'."
            )
        policy["decoupled"] = decoupled

    @property
    def _name(self) -> str:
        return str(self._model_config["name"])

    def _add(self, kind: str, tensor: dict[str, Any], allowed: tuple[str, ...]) -> None:
        place = f"in auto-complete-config function for model '{self._name}'"
        if any(key not in allowed for key in tensor):
            listed = ", ".join(f"'{key}'" for key in allowed[:-1]) + f" and '{allowed[-1]}'"
            raise ValueError(f"{kind} '{tensor['name']}' {place} contains property other than {listed}.")
        if "name" not in tensor:
            raise ValueError(f"{kind} {place} is missing 'name' property.")
        for key in ("data_type", "dims"):
            if key not in tensor:
                raise ValueError(f"{kind} '{tensor['name']}' {place} is missing '{key}' property.")
        for stated in self._model_config[kind]:
            if stated["name"] == tensor["name"]:
                self._check_same(kind, stated, tensor)
                stated.update({key: tensor[key] for key in allowed[1:] if key in tensor})
                return
        self._model_config[kind].append(tensor)

    def _check_same(self, kind: str, stated: dict[str, Any], tensor: dict[str, Any]) -> None:
        name = tensor["name"]
        if stated["data_type"] not in ("TYPE_INVALID", tensor["data_type"]):
            raise ValueError(
                f"unable to load model '{self._name}', configuration expects datatype {stated['data_type']} for {kind}"
                f" '{name}', model provides {tensor['data_type']}"
            )
        if stated["dims"] and stated["dims"] != tensor["dims"]:
            raise ValueError(
                f"model '{self._name}', tensor '{name}': the model expects dims {tensor['dims']} but the model"
                f" configuration specifies dims {stated['dims']}"
            )
        if "optional" in stated and "optional" in tensor and stated["optional"] != tensor["optional"]:
            raise ValueError(
                f"model '{self._name}', tensor '{name}': the model expects optional {tensor['optional']} but the model"
                f" configuration specifies optional {stated['optional']}"
            )
