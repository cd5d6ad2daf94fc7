"""What every program needs: errors and how a worker ends, files, texts, checked values, the clock."""
