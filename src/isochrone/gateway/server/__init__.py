"""The gateway process: its settings, what it records, and the server that owns them."""
