"""The plan of applying a fleet.yaml: its steps, what it takes away, and settings that differ. Pure.

``plan`` combines the other modules. Must never carry out a step: the supervisor and the leader do.
"""
