"""What played runs say: the IoU at any number of workers, and with known speeds what it takes."""
