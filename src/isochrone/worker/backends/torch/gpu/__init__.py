"""Torch models on a GPU: a batch is copied and launched while the one before it computes.

``settings`` reads the configuration, ``placement`` brings the module onto the device, ``capture_plan`` decides which
batch sizes become CUDA graphs and ``graphs`` captures them. ``staging`` counts the slots through which batches go,
``slots`` holds their memory, and ``executable`` moves a batch through a slot. ``device`` is the part of torch.cuda that
they need, with a second implementation for the CPU: everything but the GPU itself is tested there.
"""
