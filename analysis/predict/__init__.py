"""Worker counts that are not measured: predicted, written down, and later held against the runs."""
