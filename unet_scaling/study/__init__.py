"""What is asked: options, study files, configurations of runs. Imported without torch and pandas."""
