"""How long a gateway's own housekeeping holds its event loop, with many models on many workers."""
