"""The figures of the metrics page over OTLP, for those without Prometheus."""
