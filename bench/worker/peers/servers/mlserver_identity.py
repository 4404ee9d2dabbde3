"""An MLServer runtime that returns its input tensor; model-settings.json names it."""

from mlserver import MLModel  # type: ignore[import-not-found]
from mlserver.types import (  # type: ignore[import-not-found]
    InferenceRequest,
    InferenceResponse,
    ResponseOutput,
)


class Identity(MLModel):  # type: ignore[misc]
    """No codec: the tensor's own data goes back as it came."""

    async def load(self) -> bool:
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        tensor = payload.inputs[0]
        output = ResponseOutput(name="OUTPUT0", shape=tensor.shape, datatype=tensor.datatype, data=tensor.data)
        return InferenceResponse(model_name=self.name, outputs=[output])
