"""The models without a server: what a server is measured against."""
