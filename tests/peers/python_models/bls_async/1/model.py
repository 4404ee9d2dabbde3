"""Calls other models from a coroutine, and answers with what it got as JSON."""

import asyncio
import json

import numpy as np
import triton_python_backend_utils as pb_utils

ROW = np.array([[1, 2, 3]], np.float32)


def call(model, inputs, outputs):
    tensors = [pb_utils.Tensor(name, array) for name, array in inputs.items()]
    return pb_utils.InferenceRequest(model_name=model, inputs=tensors, requested_output_names=outputs)


def described(response):
    if response.has_error():
        return {"error": response.error().message(), "code": int(response.error().code())}
    return sorted((each.name(), str(each.as_numpy().tolist())) for each in response.output_tensors())


class Cases:
    async def one(self):
        return described(await call("doubles", {"IN": ROW}, ["OUT"]).async_exec())

    async def several_at_once(self):
        calls = [call("doubles", {"IN": ROW * number}, ["OUT"]).async_exec() for number in range(8)]
        return [described(response) for response in await asyncio.gather(*calls)]

    async def several_kinds_at_once(self):
        row = np.ones((1, 4), np.float32)
        calls = (
            call("fourfold", {"IN": ROW}, ["OUT"]),
            call("add_sub", {"LEFT": row, "RIGHT": row}, ["SUM"]),
            call("nobody", {"IN": ROW}, ["OUT"]),
            call("doubles", {"WRONG": ROW}, ["OUT"]),
        )
        return [described(response) for response in await asyncio.gather(*(each.async_exec() for each in calls))]

    async def stream(self):
        responses = await call("repeat", {"IN": np.array([7, 8], np.int32)}, ["OUT"]).async_exec(decoupled=True)
        return [described(response) for response in responses]

    async def streams_at_once(self):
        calls = [call("repeat", {"IN": np.array([each], np.int32)}, ["OUT"]) for each in (1, 2)]
        found = await asyncio.gather(*(each.async_exec(decoupled=True) for each in calls))
        return [[described(response) for response in responses] for responses in found]

    async def stream_as_if_it_were_none(self):
        return described(await call("repeat", {"IN": np.array([7], np.int32)}, ["OUT"]).async_exec())

    async def waits_for_a_function(self):
        return described(call("doubles", {"IN": ROW}, ["OUT"]).exec())

    async def raises(self):
        raise ValueError("in a coroutine")


class TritonPythonModel:
    async def execute(self, requests):
        return [await self.answer(request) for request in requests]

    async def answer(self, request):
        case = request.inputs()[0].as_numpy()[0].decode()
        text = np.array([json.dumps(await getattr(Cases(), case)()).encode()], np.object_)
        return pb_utils.InferenceResponse([pb_utils.Tensor("TEXT", text)])
