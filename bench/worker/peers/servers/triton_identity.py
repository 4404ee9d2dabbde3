"""Runs inside Triton's python backend: returns the array and does nothing else."""

import triton_python_backend_utils as triton  # type: ignore[import-not-found]


class TritonPythonModel:
    """The class name Triton's python backend looks for."""

    def execute(self, requests: list[object]) -> list[object]:
        return [
            triton.InferenceResponse(
                [triton.Tensor("OUTPUT0", triton.get_input_tensor_by_name(request, "INPUT0").as_numpy())]
            )
            for request in requests
        ]
