"""Documents as files: plain manifests, a Helm chart, a base with overlays for Kustomize. Pure: texts by path."""
