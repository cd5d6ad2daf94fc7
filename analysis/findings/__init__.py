"""What the tables say of the frameworks: speed-up, comparison, IoU, cost, verdict, recommendation."""
