"""Calls other models, each case in another way, and answers with what it got as JSON."""

import json

import numpy as np
import triton_python_backend_utils as pb_utils

ROW = np.array([[1, 2, 3]], np.float32)


def call(model, inputs, outputs, **more):
    tensors = [pb_utils.Tensor(name, array) for name, array in inputs.items()]
    return pb_utils.InferenceRequest(model_name=model, inputs=tensors, requested_output_names=outputs, **more)


def described(response):
    if response.has_error():
        return {"error": response.error().message(), "code": int(response.error().code())}
    tensors = [
        (tensor.name(), str(tensor.as_numpy().dtype), list(tensor.shape()), str(tensor.as_numpy().tolist()))
        for tensor in response.output_tensors()
    ]
    return {"tensors": sorted(tensors)}


class Cases:
    def onnx(self):
        return described(call("doubles", {"IN": ROW}, ["OUT"]).exec())

    def a_version(self):
        return described(call("doubles", {"IN": ROW}, ["OUT"], model_version=1).exec())

    def ensemble(self):
        return described(call("fourfold", {"IN": ROW}, ["OUT"]).exec())

    def text(self):
        text = np.array([["a few words"]], np.object_)
        return described(call("tokenize", {"TEXT": text}, ["TOKENS"]).exec())

    def one_output(self):
        row = np.ones((1, 4), np.float32)
        return described(call("add_sub", {"LEFT": row, "RIGHT": row}, ["SUM"]).exec())

    def both_outputs(self):
        row = np.ones((1, 4), np.float32)
        return described(call("add_sub", {"LEFT": row, "RIGHT": row}, ["SUM", "DIFFERENCE"]).exec())

    def outputs_in_another_order(self):
        row = np.ones((1, 4), np.float32)
        response = call("add_sub", {"LEFT": row, "RIGHT": row}, ["DIFFERENCE", "SUM"]).exec()
        return [tensor.name() for tensor in response.output_tensors()]

    def no_outputs(self):
        row = np.ones((1, 4), np.float32)
        return described(call("add_sub", {"LEFT": row, "RIGHT": row}, []).exec())

    def one_after_another(self):
        array = ROW
        for _ in range(5):
            response = call("doubles", {"IN": array}, ["OUT"]).exec()
            array = pb_utils.get_output_tensor_by_name(response, "OUT").as_numpy()
        return array.tolist()

    def the_response_is_ours_to_change(self):
        array = call("doubles", {"IN": ROW}, ["OUT"]).exec().output_tensors()[0].as_numpy()
        array[...] = 9
        return array.tolist(), ROW.tolist()

    def what_the_called_model_sees(self):
        request = call(
            "view",
            {"IN": np.ones(2, np.float32)},
            ["SEEN"],
            request_id="inner",
            correlation_id=41,
            timeout=30_000_000,
            parameters={"a": 1, "b": "two", "c": False},
        )
        response = request.exec()
        if response.has_error():
            return described(response)
        seen = json.loads(response.output_tensors()[0].as_numpy()[0])
        seen.pop("args")
        return seen

    def model_that_is_not_there(self):
        return described(call("nobody", {"IN": ROW}, ["OUT"]).exec())

    def version_that_is_not_there(self):
        return described(call("doubles", {"IN": ROW}, ["OUT"], model_version=9).exec())

    def unknown_input(self):
        return described(call("doubles", {"WRONG": ROW}, ["OUT"]).exec())

    def input_too_many(self):
        return described(call("doubles", {"IN": ROW, "WRONG": ROW}, ["OUT"]).exec())

    def missing_input(self):
        return described(call("add_sub", {"LEFT": np.ones((1, 4), np.float32)}, ["SUM"]).exec())

    def no_inputs(self):
        return described(call("doubles", {}, ["OUT"]).exec())

    def unknown_output(self):
        return described(call("doubles", {"IN": ROW}, ["WRONG"]).exec())

    def wrong_shape(self):
        return described(call("doubles", {"IN": np.ones((1, 5), np.float32)}, ["OUT"]).exec())

    def wrong_rank(self):
        return described(call("doubles", {"IN": np.ones(3, np.float32)}, ["OUT"]).exec())

    def wrong_type(self):
        return described(call("doubles", {"IN": ROW.astype(np.float64)}, ["OUT"]).exec())

    def too_many_rows(self):
        return described(call("doubles", {"IN": np.ones((5, 3), np.float32)}, ["OUT"]).exec())

    def a_model_that_raises(self):
        return described(call("faults", {"CASE": np.array([b"raises"], np.object_)}, ["OUT"]).exec())

    def a_model_that_answers_an_error(self):
        inputs = {"CASE": np.array([b"error_of_code"], np.object_), "CODE": np.array([2], np.int32)}
        return described(call("faults", inputs, ["OUT"]).exec())

    def a_decoupled_model_as_if_it_were_not(self):
        return described(call("repeat", {"IN": np.array([1, 2], np.int32)}, ["OUT"]).exec())

    def stream(self):
        responses = call("repeat", {"IN": np.array([4, 5, 6], np.int32)}, ["OUT"]).exec(decoupled=True)
        return [described(response) for response in responses]

    def stream_of_none(self):
        responses = call("repeat", {"IN": np.zeros(0, np.int32)}, ["OUT"]).exec(decoupled=True)
        return [described(response) for response in responses]

    def stream_with_the_flag_on_the_last(self):
        responses = call("square", {"IN": np.array([2], np.int32)}, ["OUT"]).exec(decoupled=True)
        return [described(response) for response in responses]

    def stream_twice(self):
        responses = call("repeat", {"IN": np.array([4, 5], np.int32)}, ["OUT", "INDEX"]).exec(decoupled=True)
        first = [described(response) for response in responses]
        second = [described(response) for response in responses]
        return first, second

    def stream_by_hand(self):
        responses = call("repeat", {"IN": np.array([4], np.int32)}, ["OUT"]).exec(decoupled=True)
        found = [described(next(responses)), described(next(responses))]
        try:
            next(responses)
        except StopIteration as error:
            found.append(str(error))
        return found

    def stream_that_is_left(self):
        responses = call("repeat", {"IN": np.arange(20, dtype=np.int32)}, ["OUT"]).exec(decoupled=True)
        first = described(next(responses))
        del responses
        return first

    def stream_with_an_error(self):
        responses = call("streams", {"CASE": np.array([b"error_after_two"], np.object_)}, ["OUT"]).exec(decoupled=True)
        return [described(response) for response in responses]

    def stream_that_raises(self):
        responses = call("streams", {"CASE": np.array([b"raise_after_two"], np.object_)}, ["OUT"]).exec(decoupled=True)
        return [described(response) for response in responses]

    def stream_of_a_model_that_is_not_there(self):
        return [described(response) for response in call("nobody", {"IN": ROW}, ["OUT"]).exec(decoupled=True)]

    def stream_with_a_wrong_input(self):
        return [described(response) for response in call("repeat", {"NO": ROW}, ["OUT"]).exec(decoupled=True)]

    def one_response_as_a_stream(self):
        return [described(response) for response in call("doubles", {"IN": ROW}, ["OUT"]).exec(decoupled=True)]

    def a_coroutine_of_a_function(self):
        call("doubles", {"IN": ROW}, ["OUT"]).async_exec()


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
