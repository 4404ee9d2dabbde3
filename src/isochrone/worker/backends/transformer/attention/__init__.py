"""Attention over the paged cache: gathered anywhere, or in place by kernels for GPUs."""
