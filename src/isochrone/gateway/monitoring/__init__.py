"""What a gateway finds out about its endpoints beside requests: health, indexes, probes, discovery."""
