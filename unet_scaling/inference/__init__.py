"""The network of a complete run put to use: masks of a folder, and a server (optional)."""
