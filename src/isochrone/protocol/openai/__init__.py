"""The OpenAI-compatible front: chat completions, completions and the list of models under ``/v1``.

``router`` finds the route of a message head. ``chat_body`` and ``completion_body`` read a body as a ``CompletionCall``;
``tensors`` makes the inputs of a model from it, under the names of Triton's vLLM backend; ``completions`` sends one
``InferRequest`` per choice to the ``InferenceService`` and writes its responses as one object or as a stream of events.
Nothing here runs a model, or knows a tokenizer or a chat template: those belong to the model.
"""
