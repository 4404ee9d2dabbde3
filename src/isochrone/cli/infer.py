"""``isochrone infer``: written after the server runs."""


def infer() -> None:
    """One request."""
