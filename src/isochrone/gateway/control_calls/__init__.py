"""Control calls through a gateway: answered here, or asked of every endpoint and merged."""
