"""Fleets that an engine places on several machines: failures of nodes, and the same models served by others."""
