"""The worker process: its settings, what it loads and what it records, and the server that owns them."""
