"""From a study and a cluster file to jobs, each once, and what follows when they end."""
