"""The processes of a simulated fleet and what acts on them: gateways, workers, network, antagonists, failures.

They act only when the engine calls them. They must never read the real clock, open a socket or draw from an unseeded
random generator.
"""
