"""The gateway beside Envoy and HAProxy: what a hop costs, what antagonists and overload do. See bench/README.md."""
