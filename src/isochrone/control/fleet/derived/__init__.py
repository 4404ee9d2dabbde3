"""What follows from a fleet: its processes with their command lines and needs, and the rules of its gateways. Pure.

``processes`` has them on machines, ``engine_processes`` on any engine; ``locations`` are the paths and URLs on command
lines. ``outside_servers`` run already. ``gateway_rules`` reach the gateways through the store. ``pool_autoscaling`` has
the settings of autoscalers, ``pool_sizes`` the fleet with the sizes that they chose.
"""
