"""What every program needs: errors in one line, files written whole, texts, checks of values."""
