"""Which replica may take a request, and whether it is worth sending: balancer and admission. Pure."""
