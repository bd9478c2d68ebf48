"""`ADDRESS:PORT` on a command line."""

import argparse
from collections.abc import Callable


def listen_address(example_port: int) -> Callable[[str], tuple[str, int]]:
    """A type for argparse: "127.0.0.1:80" and "[::1]:80" -> (host, port)."""

    def parse(text: str) -> tuple[str, int]:
        host, colon, port = text.rpartition(":")
        if not colon or not host or not port.isascii() or not port.isdecimal() or int(port) > 65535:
            raise argparse.ArgumentTypeError(f"{text!r} is not like 127.0.0.1:{example_port}")
        return host.strip("[]"), int(port)

    return parse
