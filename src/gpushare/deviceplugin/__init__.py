"""The device plugin: gives each pod the GPU that was decided for it.

The kubelet asks for device ids by number and never says for which pod. So the plugin **allocates,
then attests**: it hands out ids of the GPU that was decided for the pod it takes the call for, then
looks up which pod really got them, and where two pods were taken for each other it exchanges them
on the books.

Pure, no I/O and no clock:

ids         device ids, which carry the GPU and the unit
pods        what the plugin knows of a pod on its node
books       which chunk of which pod has which place, and which ids
matching    GetPreferredAllocation and Allocate: for which chunk is this call?
deciding    a GPU, by the node's policy, for a pod that nobody decided
attesting   who really got which ids
publishing  what pods' and the node's annotations have to say
offers      ids for a chunk, on the GPUs of its place
handing_on  the ids an init container hands on
refusals    why a container gets none, in words

The process around it (gRPC, registration, sources of attestation) is not written yet.
"""
