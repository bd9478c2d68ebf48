"""Which container gets which device ids. Pure: no I/O and no clock.

ids           device ids, which carry the GPU and the unit
pods          what the plugin knows of a pod on its node
books         which chunk of which pod has which place, and which ids
matching      GetPreferredAllocation and Allocate: for which chunk is this call?
handing_on    the ids an init container hands on
asking_again  calls for pods that had ids before
late          calls for pods that have left
deciding      a GPU, by the node's policy, for a pod that nobody decided
attesting     who really got which ids
publishing    what pods' and the node's annotations have to say
offers        ids for a chunk, on the GPUs of its place
refusals      why a container gets none, in words
"""
