"""The sum and the difference of two inputs: the first model of every tutorial."""

import json

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        outputs = [pb_utils.get_output_config_by_name(config, name) for name in ("SUM", "DIFFERENCE")]
        self.types = [pb_utils.triton_string_to_numpy(output["data_type"]) for output in outputs]

    def execute(self, requests):
        responses = []
        for request in requests:
            left = pb_utils.get_input_tensor_by_name(request, "LEFT").as_numpy()
            right = pb_utils.get_input_tensor_by_name(request, "RIGHT").as_numpy()
            computed = (np.add(left, right), np.subtract(left, right))
            tensors = [
                pb_utils.Tensor(name, array.astype(kind))
                for name, array, kind in zip(("SUM", "DIFFERENCE"), computed, self.types, strict=True)
            ]
            responses.append(pb_utils.InferenceResponse(output_tensors=tensors))
        return responses

    def finalize(self):
        self.types = None
