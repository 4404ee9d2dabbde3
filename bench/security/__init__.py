"""What security costs. See bench/README.md."""
