"""Runs benchmarks by name: all of them, or those named."""

import argparse
import sys
from importlib import import_module

BENCHMARKS = ("placement", "extender", "inspect", "native", "podstatus", "throughput")
"""Modules of this package, in the order in which they run."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Figures of gpushare.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(BENCHMARKS))
    names = parser.parse_args().names or BENCHMARKS
    unknown = [name for name in names if name not in BENCHMARKS]
    if unknown:
        parser.error(f"there is no benchmark {unknown[0]!r}; there are {', '.join(BENCHMARKS)}")
    for name in names:
        module = import_module(f"bench.{name}")
        print(f"== {name}: {(module.__doc__ or '').splitlines()[0]}", flush=True)
        module.main()
        print(flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
