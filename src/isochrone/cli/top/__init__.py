"""``isochrone top``: live figures of models, workers and gateways, on a screen with keys or as plain lines.

``sources`` read a fleet or one process, ``samples`` are what one update has, ``screen`` shows them on a terminal.
"""
