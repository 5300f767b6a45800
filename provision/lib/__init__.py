"""What knows nothing of GPUs: files, folders, texts of strangers, our own state."""
