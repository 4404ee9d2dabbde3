"""A python model that calls another one, ``affine``, for Triton's python backend, and for ours: the same file."""

import triton_python_backend_utils as pb_utils  # type: ignore[import-not-found]


class TritonPythonModel:
    """Returns what the called model answers."""

    def execute(self, requests: list[object]) -> list[object]:
        responses = []
        for request in requests:
            call = pb_utils.InferenceRequest(
                model_name="affine",
                requested_output_names=["OUTPUT0"],
                inputs=[pb_utils.get_input_tensor_by_name(request, "INPUT0")],
            )
            answer = call.exec()
            if answer.has_error():
                raise pb_utils.TritonModelException(answer.error().message())
            responses.append(pb_utils.InferenceResponse(answer.output_tensors()))
        return responses
