"""Which of the timed pairs of hosts have a link slower than the others have."""

from collections import Counter
from collections.abc import Sequence

from unet_scaling.measure.ping_pong import HostPair

# A message takes so many times as long as between the fastest pair; noise of the fastest repeat is far less.
SLOW_LINK_RATIO = 2.0
# Latencies of one network differ by the hops between hosts.
SLOW_LATENCY_RATIO = 5.0


def slow_links(pairs: Sequence[HostPair]) -> list[str]:
    """Return a sentence for each pair with a slow link, and one for a host at the end of several."""
    linked = [pair for pair in pairs if pair.medium == "network"]
    slow = {pair.hosts: sentence for pair in linked if (sentence := _compared(pair, linked))}
    ends = Counter(host for hosts in slow for host in hosts)
    links = Counter(host for pair in linked for host in pair.hosts)
    suspects = [host for host, number in ends.items() if 1 < number == links[host]]
    return [
        *slow.values(),
        *(f"every link of {host} is slow: look at its port or cable" for host in suspects),
    ]


def _compared(pair: HostPair, pairs: Sequence[HostPair]) -> str:
    """Return how a pair is slower than the fastest, in the same message; empty where it is not."""
    names = " - ".join(pair.hosts)
    for row in (len(pair.bytes) - 1, 0):
        own = pair.minimum_seconds[row]
        fastest = min(other.minimum_seconds[row] for other in pairs if len(other.bytes) > row)
        if own > (SLOW_LATENCY_RATIO if row == 0 else SLOW_LINK_RATIO) * fastest:
            return (
                f"the link {names} is slow: {pair.bytes[row]:,} bytes take {1e3 * own:.3g} ms, "
                f"between the fastest pair {1e3 * fastest:.3g} ms"
            )
    return ""
