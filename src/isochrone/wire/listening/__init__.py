"""Listening sockets: they accept connections, find out what each speaks, and stop together.

``listener`` is one socket, ``listeners`` those of a process with the memory budget that they share.
"""
