"""Fails the build if the interposer needs more of a system than it may.

    check_elf.py FILE --glibc 2.17 --needed libc.so.6

Reads the dynamic section itself: the machine that builds may have no readelf.
"""

import argparse
import struct
import sys
from pathlib import Path

PT_LOAD, PT_DYNAMIC = 1, 2
DT_NEEDED, DT_STRTAB, DT_VERNEED, DT_VERNEEDNUM = 1, 5, 0x6FFFFFFE, 0x6FFFFFFF


class Elf:
    """The dynamic section of a 64-bit little-endian shared object."""

    def __init__(self, path: Path) -> None:
        self.data = path.read_bytes()
        if self.data[:6] != b"\x7fELF\x02\x01":
            raise SystemExit(f"{path} is no 64-bit little-endian ELF file")
        (offset,) = struct.unpack_from("<Q", self.data, 32)
        size, count = struct.unpack_from("<HH", self.data, 54)
        headers = [
            struct.unpack_from("<IIQQQQ", self.data, offset + i * size) for i in range(count)
        ]
        self.loads = [(h[3], h[2], h[5]) for h in headers if h[0] == PT_LOAD]
        self.dynamic = [
            struct.unpack_from("<QQ", self.data, at)
            for h in headers
            if h[0] == PT_DYNAMIC
            for at in range(h[2], h[2] + h[5], 16)
        ]

    def offset(self, address: int) -> int:
        """Where in the file an address is."""
        for start, offset, size in self.loads:
            if start <= address < start + size:
                return offset + address - start
        raise SystemExit(f"address {address:#x} is in no segment")

    def value(self, tag: int) -> int | None:
        return next((value for key, value in self.dynamic if key == tag), None)

    def string(self, at: int) -> str:
        table = self.value(DT_STRTAB)
        assert table is not None
        start = self.offset(table) + at
        return self.data[start : self.data.index(b"\0", start)].decode()

    def needed(self) -> list[str]:
        return [self.string(value) for key, value in self.dynamic if key == DT_NEEDED]

    def versions(self) -> list[str]:
        """Symbol versions it asks of other libraries, like GLIBC_2.17."""
        table = self.value(DT_VERNEED)
        if table is None:
            return []
        found = []
        at = self.offset(table)
        for _ in range(self.value(DT_VERNEEDNUM) or 0):
            _, count, _, first, following = struct.unpack_from("<HHIII", self.data, at)
            entry = at + first
            for _ in range(count):
                _, _, _, name, more = struct.unpack_from("<IHHII", self.data, entry)
                found.append(self.string(name))
                entry += more
            at += following
        return found


def number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--glibc", required=True)
    parser.add_argument("--needed", action="append", default=[])
    options = parser.parse_args()
    elf = Elf(options.file)
    problems = []
    if elf.needed() != options.needed:
        problems.append(f"it needs {elf.needed()}, allowed is {options.needed}")
    for version in elf.versions():
        prefix, _, rest = version.partition("_")
        if prefix != "GLIBC" or not rest[:1].isdigit() or number(rest) > number(options.glibc):
            problems.append(f"it needs {version}, newer than GLIBC_{options.glibc}")
    for problem in problems:
        print(f"{options.file}: {problem}", file=sys.stderr)
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
