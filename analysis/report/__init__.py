"""The report: its tables, texts and page, its files, and what is printed of it."""
