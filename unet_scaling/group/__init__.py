"""One worker and all others: who it is, what it owns, how they meet and what they exchange."""
