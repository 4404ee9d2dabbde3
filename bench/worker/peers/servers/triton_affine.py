"""A small python model for Triton's python backend, and for ours: the same file."""

import numpy as np
import triton_python_backend_utils as pb_utils  # type: ignore[import-not-found]


class TritonPythonModel:
    """Doubles the array and adds one."""

    def execute(self, requests: list[object]) -> list[object]:
        responses = []
        for request in requests:
            array = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
            output = pb_utils.Tensor("OUTPUT0", array * np.float32(2) + np.float32(1))
            responses.append(pb_utils.InferenceResponse([output]))
        return responses
