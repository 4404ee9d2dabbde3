"""Ask the target once before a run: is it there, does it have the models, and what inputs do they have."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import msgspec

from isochrone.bench.sending.preparing import address_of, certificates_of, check_certificates
from isochrone.bench.workload.mix import Kind
from isochrone.bench.workload.spec import Workload
from isochrone.client.address import Address
from isochrone.client.answers import ModelMetadata, TensorMetadata
from isochrone.client.async_client import AsyncClient
from isochrone.errors import IsochroneError, NotFound, Unavailable
from isochrone.protocol.openai.paths import MODELS
from isochrone.suggestions import suggestion
from isochrone.wire.connect import connect_http1

_SECONDS = 10.0
#: Of a busy server or machine: gRPC's library gives up a TLS handshake that takes long.
_ATTEMPTS = 3
_PAUSE_SECONDS = 0.2


async def declared_inputs(workload: Workload) -> list[Sequence[TensorMetadata]]:
    """The inputs of each kind's model; empty where they do not matter. Raises an error that says what to change."""
    address = address_of(workload)
    check_certificates(workload)
    if workload.protocol == "openai":
        await _check_openai(workload, address)
        return [() for _ in workload.kinds]
    paths = {name: getattr(workload, name) or None for name in ("ca", "cert", "key")}
    found: list[Sequence[TensorMetadata]] = []
    async with AsyncClient(workload.target, retries=0, token="", **paths) as client:
        for kind in workload.kinds:
            metadata = await _metadata(client, kind, address, workload.headers)
            found.append(metadata.inputs)
    return found


async def _metadata(client: AsyncClient, kind: Kind, address: Address, headers: Mapping[str, str]) -> ModelMetadata:
    for attempt in range(_ATTEMPTS):
        if attempt:
            await asyncio.sleep(_PAUSE_SECONDS)
        try:
            async with asyncio.timeout(_SECONDS):
                return await client.metadata(kind.model, kind.version, headers=headers)
        except TimeoutError:
            raise Unavailable(f"{address} gave no metadata of '{kind.model}' within {_SECONDS:g} s") from None
        except IsochroneError as error:
            failure = error
            if error.status:
                break
    raise _explained(failure, kind.model, address)


def _explained(error: IsochroneError, model: str, address: Address) -> IsochroneError:
    if not error.status:
        # No answer: it is the address, not the model.
        return _unreachable(error)
    text = f"{address} does not have what the workload asks for: {error}; name a model and version that it serves"
    return NotFound(f"{text}, given model '{model}'")


def _unreachable(error: IsochroneError) -> Unavailable:
    is_untrusted = "CERTIFICATE_VERIFY_FAILED" in str(error)
    change = "name its authority with --ca" if is_untrusted else "start a server there, or name the URL of another"
    return Unavailable(f"{error}; {change}")


async def _check_openai(workload: Workload, address: Address) -> None:
    tls = certificates_of(workload).context() if address.is_secure else None
    try:
        connection = await connect_http1(address.host, address.port, tls=tls)
    except Unavailable as error:
        raise _unreachable(error) from None
    try:
        headers = [(b"host", address.authority.encode())]
        headers += [(name.lower().encode(), value.encode("latin-1")) for name, value in workload.headers.items()]
        response = await connection.request(b"GET", MODELS.encode(), tuple(headers), (), _SECONDS)
    finally:
        connection.close()
        await asyncio.sleep(0)
    if response.status != 200:
        # Not every server lists its models.
        return
    try:
        names = [str(each["id"]) for each in msgspec.json.decode(bytes(response.body))["data"]]
    except (msgspec.DecodeError, KeyError, TypeError):
        return
    for kind in workload.kinds:
        if kind.model not in names:
            known = suggestion(kind.model, names, "model") if names else "a model that it serves; it lists none"
            raise NotFound(f"{address}: model: expected {known}, given '{kind.model}'")
