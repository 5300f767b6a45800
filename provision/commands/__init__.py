"""One module a command: each returns a document and never prints."""
