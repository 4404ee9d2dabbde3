"""The files of a model in Hugging Face's layout: what they say, and the tensors that they hold."""
