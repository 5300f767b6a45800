"""CUDA toolkits with cuDNN and NCCL."""
