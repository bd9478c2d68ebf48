"""Copies to the GPU and back with numba-cuda, then fills it."""

import numpy as np
from numba import cuda

numbers = np.arange(1024, dtype=np.int32)
assert (cuda.to_device(numbers).copy_to_host() == numbers).all()
print([amount >> 20 for amount in cuda.current_context().get_memory_info()])

kept = []
try:
    while True:
        kept.append(cuda.device_array(512 << 20, dtype=np.uint8))
except Exception as error:
    print(len(kept), "CUDA_ERROR_OUT_OF_MEMORY" in str(error))
