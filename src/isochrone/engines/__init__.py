"""Where the processes of a fleet run, and how they come to be what the fleet record says.

``base`` is what an engine promises; ``local`` keeps the promise with subprocesses of this machine. ``convergence``
decides what to start, drain and stop; ``supervisor`` carries it out. Nothing here is on the way of a request, and a
store that is away stops no process.
"""
