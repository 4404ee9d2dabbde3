"""Each case uses the classes of pb_utils, rightly or wrongly, and answers with what came of it as JSON."""

import json
import os

import numpy as np
import triton_python_backend_utils as pb_utils

CODES = ("UNKNOWN", "INTERNAL", "NOT_FOUND", "INVALID_ARG", "UNAVAILABLE", "UNSUPPORTED", "ALREADY_EXISTS", "CANCELLED")


class Foreign:
    """A tensor of another library, on a device of the test's choice."""

    def __init__(self, device, array=None):
        self.device = device
        self.array = np.zeros(2, np.float32) if array is None else array

    def __dlpack__(self, **wishes):
        return self.array.__dlpack__()

    def __dlpack_device__(self):
        return self.device, 0


class Cases:
    def tensor_without_a_name(self):
        pb_utils.Tensor("", np.zeros(2, np.float32))

    def tensor_of_an_unknown_type(self):
        pb_utils.Tensor("A", np.zeros(2, np.complex64))

    def tensor_of_dates(self):
        pb_utils.Tensor("A", np.zeros(2, "datetime64[s]"))

    def tensor_of_unicode(self):
        pb_utils.Tensor("A", np.array(["a", "b"]))

    def tensor_not_contiguous(self):
        tensor = pb_utils.Tensor("A", np.arange(6, dtype=np.int32).reshape(2, 3).T)
        return tensor.as_numpy().tolist(), list(tensor.shape()), tensor.as_numpy().flags.c_contiguous

    def tensor_without_elements(self):
        tensor = pb_utils.Tensor("A", np.zeros((0, 3), np.float32))
        return tensor.as_numpy().tolist(), list(tensor.shape())

    def tensor_is_the_array(self):
        array = np.zeros(2, np.float32)
        tensor = pb_utils.Tensor("A", array)
        array[0] = 5
        return tensor.as_numpy().tolist()

    def tensor_of_bytes(self):
        tensor = pb_utils.Tensor("A", np.array([b"ab", b"c"], "S2"))
        return [str(each) for each in tensor.as_numpy().tolist()]

    def types(self):
        names = ("BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32")
        kinds = [pb_utils.triton_string_to_numpy(f"TYPE_{name}") for name in (*names, "FP64", "STRING")]
        return [str(np.dtype(kind)) for kind in kinds]

    def unknown_type(self):
        pb_utils.triton_string_to_numpy("TYPE_FP12")

    def serialized(self):
        array = np.array([b"ab", "cä", 7, b""], np.object_)
        encoded = pb_utils.serialize_byte_tensor(array)
        data = encoded.tobytes() if hasattr(encoded, "tobytes") else bytes(encoded)
        data = data if isinstance(data, bytes) else bytes(data)
        return data.hex(), [str(each) for each in pb_utils.deserialize_bytes_tensor(data).tolist()]

    def dlpack_round_trip(self):
        tensor = pb_utils.Tensor("A", np.arange(6, dtype=np.int16).reshape(2, 3))
        back = pb_utils.Tensor.from_dlpack("B", tensor)
        again = pb_utils.Tensor.from_dlpack("C", tensor.to_dlpack())
        return back.name(), back.as_numpy().tolist(), again.as_numpy().tolist(), str(again.as_numpy().dtype)

    def dlpack_without_a_name(self):
        pb_utils.Tensor.from_dlpack("", np.zeros(2, np.float32))

    def dlpack_of_text(self):
        pb_utils.Tensor("A", np.array([b"a"], np.object_)).to_dlpack()

    def dlpack_of_no_tensor(self):
        pb_utils.Tensor.from_dlpack("A", [1, 2])

    def dlpack_of_metal(self):
        pb_utils.Tensor.from_dlpack("A", Foreign(8))

    def dlpack_of_vulkan(self):
        pb_utils.Tensor.from_dlpack("A", Foreign(7))

    def dlpack_not_contiguous(self):
        pb_utils.Tensor.from_dlpack("A", np.arange(6, dtype=np.float32).reshape(2, 3).T)

    def dlpack_used_twice(self):
        capsule = pb_utils.Tensor("A", np.zeros(2, np.float32)).to_dlpack()
        pb_utils.Tensor.from_dlpack("B", capsule)
        pb_utils.Tensor.from_dlpack("C", capsule)

    def dlpack_device(self):
        return list(pb_utils.Tensor("A", np.zeros(2, np.float32)).__dlpack_device__())

    def response(self):
        response = pb_utils.InferenceResponse([pb_utils.Tensor("A", np.zeros(2))])
        return response.has_error(), response.error(), response.output_tensors()[0].name()

    def response_without_anything(self):
        response = pb_utils.InferenceResponse()
        return response.has_error(), len(response.output_tensors())

    def response_with_an_error(self):
        response = pb_utils.InferenceResponse(error=pb_utils.TritonError("no"))
        return response.has_error(), response.error().message(), len(response.output_tensors())

    def response_with_nothing_as_a_tensor(self):
        pb_utils.InferenceResponse([None])

    def output_by_name(self):
        response = pb_utils.InferenceResponse([pb_utils.Tensor("A", np.zeros(2))])
        return pb_utils.get_output_tensor_by_name(response, "A").name(), pb_utils.get_output_tensor_by_name(
            response, "B"
        )

    def request(self):
        request = pb_utils.InferenceRequest(
            model_name="m", inputs=[], requested_output_names=["B", "A"], parameters={"p": True, "q": 4}
        )
        return (
            request.request_id(),
            request.correlation_id(),
            request.flags(),
            request.timeout(),
            sorted(request.requested_output_names()),
            json.loads(request.parameters()),
        )

    def request_with_everything(self):
        request = pb_utils.InferenceRequest(
            request_id="r",
            correlation_id="seven",
            model_name="m",
            model_version=3,
            inputs=[pb_utils.Tensor("A", np.zeros(2, np.float32))],
            requested_output_names=["B"],
            flags=pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START,
            timeout=12,
            preferred_memory=pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_CPU, 0),
        )
        request.set_flags(pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_END)
        return request.request_id(), request.correlation_id(), request.flags(), request.timeout()

    def request_with_a_wrong_correlation_id(self):
        pb_utils.InferenceRequest(model_name="m", inputs=[], requested_output_names=["A"], correlation_id=1.5)

    def request_with_an_empty_output_name(self):
        pb_utils.InferenceRequest(request_id="r", model_name="m", inputs=[], requested_output_names=[""])

    def request_with_nothing_as_input(self):
        pb_utils.InferenceRequest(request_id="r", model_name="m", inputs=[None], requested_output_names=["A"])

    def request_of_ones_own_has_no_sender(self):
        request = pb_utils.InferenceRequest(model_name="m", inputs=[], requested_output_names=["A"])
        request.get_response_sender().send(pb_utils.InferenceResponse([]))

    def error_codes(self):
        made = [pb_utils.TritonError(name, getattr(pb_utils.TritonError, name)) for name in CODES]
        return [(each.message(), int(each.code())) for each in (*made, pb_utils.TritonError("default"))]

    def readiness(self):
        ready = pb_utils.is_model_ready
        return ready("add_sub"), ready("add_sub", "1"), ready("add_sub", "7"), ready("nobody"), ready(model_name="view")

    def logger(self):
        pb_utils.Logger.log("logged plainly")
        pb_utils.Logger.log("logged with a level", pb_utils.Logger.WARNING)
        pb_utils.Logger.log_info("logged as information")
        pb_utils.Logger.log_warn("logged as a warning")
        pb_utils.Logger.log_error("logged as an error")
        pb_utils.Logger.log_verbose("logged for the curious")

    def model_directory(self):
        return os.path.basename(pb_utils.get_model_dir())

    def configurations(self):
        config = {"input": [{"name": "A"}], "output": [{"name": "B"}]}
        return [
            pb_utils.get_input_config_by_name(config, "A"),
            pb_utils.get_input_config_by_name(config, "C"),
            pb_utils.get_output_config_by_name(config, "B"),
            pb_utils.get_output_config_by_name({}, "B"),
            pb_utils.using_decoupled_model_transaction_policy({}),
            pb_utils.using_decoupled_model_transaction_policy({"model_transaction_policy": {"decoupled": True}}),
        ]


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            case = request.inputs()[0].as_numpy()[0].decode()
            try:
                found = getattr(Cases(), case)()
            except Exception as error:
                found = {"raised": type(error).__name__, "message": str(error)}
            text = np.array([json.dumps(found).encode()], np.object_)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("TEXT", text)]))
        return responses
