"""Dividing a model into two stages: where its graph can be cut, what crosses a cut, and which cut suits a link."""
