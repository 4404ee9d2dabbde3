"""Counts and samples of live requests, from which a controller evaluates a new version. Nothing is judged here."""
