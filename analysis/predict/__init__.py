"""Worker counts that are not measured: predicted in every report, or written down and later scored."""
