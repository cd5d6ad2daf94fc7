"""The figures of a report. Nothing outside this folder imports matplotlib."""
