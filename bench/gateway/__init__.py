"""Our gateway, Envoy and HAProxy: cost of a hop, behaviour under antagonists and overload. See bench/README.md."""
