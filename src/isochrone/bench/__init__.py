"""Measuring a server under load: what to send and when, sending it, and what came of it.

For any server of the Open Inference Protocol or of OpenAI's chat and completions API. Nothing here is on the way of a
request that somebody else sends.
"""
