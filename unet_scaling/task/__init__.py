"""What a run trains: its model, data, loss and score."""
