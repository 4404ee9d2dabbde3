"""A BentoML service that returns 64 floats; `bentoml serve bentoml_identity:Identity` finds it."""

import bentoml  # type: ignore[import-not-found]


# Access logging and metrics per request are off: the bench compares serving, not logging.
@bentoml.service(workers=1, logging={"access": {"enabled": False}}, metrics={"enabled": False})
class Identity:
    """async, so that no request waits for a thread."""

    @bentoml.api  # type: ignore[untyped-decorator]
    async def identity(self, values: list[float]) -> list[float]:
        return values
