"""What all frameworks share: configuration, data, model, metrics, clock and record."""
