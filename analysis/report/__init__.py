"""The report command, from reading a study on, and everything that it writes and prints."""
