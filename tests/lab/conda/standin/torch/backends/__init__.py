"""torch.backends of the stand-in."""
