"""The supervisor: keeps the processes of one machine as the fleet record asks for.

``desired`` has the processes that should run, ``observer`` those that do. ``reconcile`` decides (pure) what to start,
drain and stop; ``supervisor`` does it. The others report to the store and to the terminal. Must never stop a process
because the store is unavailable.
"""
