"""What `scan` prints of each layer of a host."""
