"""Lets a real libcudart look up the driver, then looks up the same and prints what was swapped.

libcudart itself goes no further than error 103 on a fake driver.

    use_cudart.py LIBCUDART LOOKUPS
"""

import ctypes
import re
import sys
from pathlib import Path

runtime = ctypes.CDLL(sys.argv[1])
pointer = ctypes.c_void_p()
result = runtime.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(4096))

lookups = [line.split() for line in Path(sys.argv[2]).read_text().splitlines()]
ours = [
    (int(start, 16), int(end, 16))
    for line in Path("/proc/self/maps").read_text().splitlines()
    if "libgpushare-interposer" in line
    for start, end in [re.match(r"(\w+)-(\w+)", line).groups()]
]
ask = ctypes.CDLL("libcuda.so.1").cuGetProcAddress
ask.argtypes = [
    ctypes.c_char_p,
    ctypes.POINTER(ctypes.c_void_p),
    ctypes.c_int,
    ctypes.c_uint64,
]
swapped = set()
for name, version, flags in lookups:
    found = ctypes.c_void_p()
    if name == "-" or ask(name.encode(), ctypes.byref(found), int(version), int(flags)):
        continue
    if any(start <= (found.value or 0) < end for start, end in ours):
        swapped.add(name)
print(result, len(lookups))
print(*sorted(swapped))
