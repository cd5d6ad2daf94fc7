"""Compare two studies: what differs between them, and what that did to throughput and IoU."""
