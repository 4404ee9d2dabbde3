"""Microbenches of the wire layer: one codec at a time, no sockets."""
