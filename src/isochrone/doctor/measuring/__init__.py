"""Times of this machine: ``all_times`` takes all, in two to five seconds. Writes no setting of the machine.

``loopback`` exchanges messages with ``peer``, a process of its own: in one process, the interpreter's lock would be
part of every time. ``local`` needs no second process.
"""
