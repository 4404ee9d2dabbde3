"""Step 4: logits to the most probable labels and their probabilities."""

import json
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        parameters = json.loads(args["model_config"])["parameters"]
        self.count = int(parameters["count"]["string_value"])
        names = (Path(args["model_repository"]) / args["model_version"] / "labels.txt").read_text().split()
        self.labels = np.array([name.encode() for name in names], np.object_)

    def execute(self, requests):
        responses = []
        for request in requests:
            logits = pb_utils.get_input_tensor_by_name(request, "logits").as_numpy()
            exponents = np.exp(logits - logits.max(axis=1, keepdims=True))
            scores = exponents / exponents.sum(axis=1, keepdims=True)
            best = np.argsort(-scores, axis=1, kind="stable")[:, : self.count]
            responses.append(
                pb_utils.InferenceResponse(
                    [
                        pb_utils.Tensor("labels", self.labels[best]),
                        pb_utils.Tensor("scores", np.take_along_axis(scores, best, axis=1)),
                    ]
                )
            )
        return responses
