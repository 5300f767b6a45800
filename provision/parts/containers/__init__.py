"""Container runtimes and NVIDIA's container toolkit."""
