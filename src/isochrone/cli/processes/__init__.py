"""Commands that are one process of a fleet: a gateway, a controller; and a process's place in a fleet."""
