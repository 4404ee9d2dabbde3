"""The activation cache on a made sequence of pictures: hit rate, latency with and without it, error of its answers."""
