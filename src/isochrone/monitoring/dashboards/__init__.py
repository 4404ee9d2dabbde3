"""Grafana dashboards: their panels and queries as plain data, by what they are about.

``catalog`` lists all of them, ``building`` makes Grafana's JSON with Grafana's own package, ``provisioning`` the files
by which a Grafana server finds them. Only ``building`` imports that package.
"""
