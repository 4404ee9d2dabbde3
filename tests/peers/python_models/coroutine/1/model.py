"""Decoupled, and execute is a coroutine: as many responses as IN says, and a failure at minus one."""

import asyncio

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    async def execute(self, requests):
        await asyncio.gather(*(self.answer(request) for request in requests))

    async def answer(self, request):
        sender = request.get_response_sender()
        count = int(request.inputs()[0].as_numpy().reshape(-1)[0])
        if count < 0:
            sender.send(
                pb_utils.InferenceResponse(
                    error=pb_utils.TritonError("a negative count", pb_utils.TritonError.INVALID_ARG)
                ),
                flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL,
            )
            return
        for number in range(count):
            await asyncio.sleep(0)
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([number], np.int32))]))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
