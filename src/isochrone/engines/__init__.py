"""Where the processes of a fleet run, and how they become those that the fleet record asks for.

``base`` is the interface of an engine; ``local`` implements it with subprocesses of this machine. ``launching`` settles
what must be settled before a fleet starts; ``supervision`` decides which processes to start, drain and stop, and does
so. Nothing here is on the path of a request, and an unavailable store stops no process.
"""
