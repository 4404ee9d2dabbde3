from isochrone.client.async_client import AsyncClient as AsyncClient
from isochrone.client.client import Client as Client
from isochrone.client.control_loop.loop import ControlLoop as ControlLoop
from isochrone.in_process.options import model as model
from isochrone.in_process.server import Server as Server
from isochrone.in_process.serving import serve as serve

__version__: str

__all__ = ["AsyncClient", "Client", "ControlLoop", "Server", "model", "serve"]
