"""Commands that run one process of a fleet (worker, gateway, controller), and that process's membership in the fleet.

They turn flags into settings. They must never decide how requests are served.
"""
