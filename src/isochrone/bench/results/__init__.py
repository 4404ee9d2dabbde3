"""What a run measured, and its file. Knows neither workloads nor transports."""
