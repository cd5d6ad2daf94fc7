"""Network interfaces of this host, and the one over which gloo will talk."""

import fcntl
import os
import socket
import struct
from collections.abc import Mapping
from contextlib import suppress

GLOO_VARIABLE = "GLOO_SOCKET_IFNAME"
# From <linux/sockios.h>: the address of an interface; in the answer it lies at these bytes.
SIOCGIFADDR = 0x8915
IFREQ_BYTES = 256
ADDRESS_BYTES = slice(20, 24)


def interface_addresses() -> dict[str, str]:
    """Return the IPv4 address of each interface that has one."""
    addresses = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            request = struct.pack(f"{IFREQ_BYTES}s", name.encode())
            with suppress(OSError):
                answer = fcntl.ioctl(asking, SIOCGIFADDR, request)
                addresses[name] = socket.inet_ntoa(answer[ADDRESS_BYTES])
    return addresses


def gloo_interface(addresses: Mapping[str, str], environment: Mapping[str, str] = os.environ) -> str:
    """Return the interface that gloo takes, whether or not it exists; empty where it finds none.

    That is the first of GLOO_SOCKET_IFNAME, or else the one with the address of the host's own name.
    """
    named = environment.get(GLOO_VARIABLE, "").partition(",")[0]
    if named:
        return named
    own = own_address()
    return next((name for name, address in addresses.items() if address == own), "")


def own_address() -> str:
    """Return what this host's own name resolves to; empty where it does not."""
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError:
        return ""
