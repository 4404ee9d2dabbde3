"""What a model sees: of the server in ``initialize``, of each request, and of its inputs; as JSON."""

import json
import os

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.args = dict(args)

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        tensor = request.inputs()[0]
        array = tensor.as_numpy()
        seen = {
            "args": self.args,
            "directory": os.path.relpath(pb_utils.get_model_dir(), self.args["model_repository"]),
            "request_id": request.request_id(),
            "correlation_id": request.correlation_id(),
            "flags": request.flags(),
            "timeout": request.timeout(),
            "parameters": request.parameters(),
            "outputs": sorted(request.requested_output_names()),
            "cancelled": request.is_cancelled(),
            "trace": request.trace().get_context(),
            "inputs": [(each.name(), list(each.shape()), each.is_cpu()) for each in request.inputs()],
            "array": (str(array.dtype), array.flags.writeable, array.flags.c_contiguous),
            "device": list(tensor.__dlpack_device__()),
        }
        array[...] = 0
        text = np.array([json.dumps(seen).encode()], dtype=np.object_)
        tensors = [pb_utils.Tensor("SEEN", text), pb_utils.Tensor("AFTER", tensor.as_numpy())]
        return pb_utils.InferenceResponse(tensors)
