"""Two studies against each other, before and after a change."""
