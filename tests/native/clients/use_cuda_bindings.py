"""Uses the driver through cuda-bindings and prints what it sees and how much it gets."""

from cuda.bindings import driver

MIB = 1 << 20


def good(answer):
    assert answer[0] == 0, answer[0]
    return answer[1] if len(answer) == 2 else answer[1:]


assert driver.cuInit(0)[0] == 0
device = good(driver.cuDeviceGet(0))
driver.cuCtxSetCurrent(good(driver.cuDevicePrimaryCtxRetain(device)))
free, total = good(driver.cuMemGetInfo())
print(free // MIB, total // MIB, good(driver.cuDeviceTotalMem(device)) // MIB)

granted = 0
while (answer := driver.cuMemAlloc(512 * MIB))[0] == 0:
    granted += 1
print(granted, int(answer[0]))

stream = good(driver.cuStreamCreate(0))
print(int(driver.cuMemAllocAsync(512 * MIB, stream)[0]))

prop = driver.CUmemAllocationProp()
prop.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
prop.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
prop.location.id = 0
print(*(int(driver.cuMemCreate(size * MIB, prop, 0)[0]) for size in (512, 64)))
