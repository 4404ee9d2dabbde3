"""Decoupled, and passes the responses of another decoupled model on as they come."""

import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            given = request.inputs()[0].as_numpy()
            called = pb_utils.InferenceRequest(
                model_name="repeat", inputs=[pb_utils.Tensor("IN", given)], requested_output_names=["OUT"]
            )
            for response in called.exec(decoupled=True):
                if response.has_error():
                    sender.send(pb_utils.InferenceResponse(error=response.error()))
                elif len(response.output_tensors()) > 0:
                    array = response.output_tensors()[0].as_numpy()
                    sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", array + np.int32(100))]))
            sender.send(flags=FINAL)
        return None
