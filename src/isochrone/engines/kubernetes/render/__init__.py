"""The objects of a fleet, as Kubernetes documents (plain dicts).

Start at ``fleet_objects.parts``. One module has one concern: ``workers``, ``gateways`` and ``control`` put pods
together from ``command_lines``, ``volumes``, ``probes``, ``scheduling`` and ``pods``. Pure.
"""
