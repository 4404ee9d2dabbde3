"""The engine of one machine: each process of a fleet is a subprocess with a log file.

Restarts a process that dies, and none outlives the supervisor. Must never decide which processes should run:
``supervision`` does.
"""
