"""Decoder-only transformers in Hugging Face's layout, computed by torch with a paged cache."""
