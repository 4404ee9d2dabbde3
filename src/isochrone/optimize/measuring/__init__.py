"""Measured times of runs on this machine: as many runs as their spread asks for, and no more."""
