"""PyTorch models on the CPU: exported programs, AOTInductor packages and TorchScript."""
