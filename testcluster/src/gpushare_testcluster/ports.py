"""A loopback address of the cluster's own, and ports that are free on it.

127.0.0.0/8 is all loopback on Linux. A cluster takes a random /24 of it: its API server can then
have port 443 (as root) next to other clusters, and the range serves for Services.
"""

from __future__ import annotations

import os
import secrets
import socket

from gpushare_testcluster.errors import CannotRun


def own_address() -> str:
    """`127.A.B.1` with random A and B, where binding works and the API server's port is free."""
    for _ in range(50):
        address = f"127.{secrets.randbelow(200) + 20}.{secrets.randbelow(256)}.1"
        if _free(address, api_port()):
            return address
    raise CannotRun(
        "no address of 127.0.0.0/8 can be bound; the test cluster needs Linux's loopback network"
    )


def api_port() -> int:
    """443 for root, whose pods then reach the API server by the usual Service; else 6443."""
    return 443 if os.geteuid() == 0 else 6443


def free_ports(address: str, count: int) -> list[int]:
    """`count` different ports free on `address`, below the range of outgoing connections.

    Raises CannotRun when none are found.
    """
    found: list[int] = []
    for _ in range(1000):
        port = 20000 + secrets.randbelow(12000)
        if port not in found and _free(address, port):
            found.append(port)
            if len(found) == count:
                return found
    raise CannotRun(f"no {count} free ports between 20000 and 32000 on {address}")


def _free(address: str, port: int) -> bool:
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((address, port))
            sock.listen(1)
        except OSError:
            return False
        return True
