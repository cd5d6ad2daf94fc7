"""From the records of a study to its tables, and which runs are left out of them."""
