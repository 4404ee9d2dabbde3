"""Decides how many workers a pool should have. Pure: no clock, no I/O; starts and stops nothing."""
