"""What may run where and what was recorded: on login nodes and for the analysis, without torch and pandas."""
