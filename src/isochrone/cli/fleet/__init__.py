"""Commands for a fleet: ``changing`` has those that start or change it, ``inspecting`` those that show it."""
