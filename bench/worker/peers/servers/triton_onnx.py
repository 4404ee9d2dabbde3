"""Runs inside Triton's python backend: one onnxruntime run for all requests Triton batched together."""

import json

import numpy as np
import onnxruntime
import triton_python_backend_utils as triton  # type: ignore[import-not-found]


class TritonPythonModel:
    """The class name Triton's python backend looks for."""

    def initialize(self, args: dict[str, str]) -> None:
        parameters = json.loads(args["model_config"])["parameters"]
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = int(parameters["intra_op_threads"]["string_value"])
        self.session = onnxruntime.InferenceSession(
            parameters["onnx_file"]["string_value"], options, providers=["CPUExecutionProvider"]
        )

    def execute(self, requests: list[object]) -> list[object]:
        inputs = [triton.get_input_tensor_by_name(request, "INPUT0").as_numpy() for request in requests]
        batch = inputs[0] if len(inputs) == 1 else np.concatenate(inputs)
        (output,) = self.session.run(["OUTPUT0"], {"INPUT0": batch})
        ends = np.cumsum([len(rows) for rows in inputs])
        return [triton.InferenceResponse([triton.Tensor("OUTPUT0", rows)]) for rows in np.split(output, ends[:-1])]
