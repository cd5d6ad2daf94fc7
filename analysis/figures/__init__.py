"""Every picture: of a report, of two studies, of the latencies of a server. Only here is matplotlib."""
