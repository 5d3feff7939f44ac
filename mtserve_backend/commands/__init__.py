"""What `mtserve` does, one command a file. cli.py parses and prints; nothing here does."""
