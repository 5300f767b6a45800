"""Guests with real kernels that really boot (QEMU without KVM): see README.md. The cards and NVIDIA's code are simulated."""
