"""The records that a fleet keeps in the store: their keys, their types (``records``, ``rollout_records``,
``process_records``), a typed view of them, and events.

Decodes and encodes. Must never decide anything about the fleet, and never write to the store by itself.
"""
