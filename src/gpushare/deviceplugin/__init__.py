"""The device plugin: gives each pod the GPU that was decided for it.

The kubelet asks for device ids by number and never says for which pod. So the plugin **allocates,
then attests**: it hands out ids of the GPU that was decided for the pod it takes the call for, then
looks up which pod really got them, and where two pods were taken for each other it exchanges them
on the books.

core         the decisions, pure: who has which ids, for whom is this call, what has to be published

state        what is known: the Node object, its pods, its GPUs, and core's books
conditions   what the node's labels promise, and what is in the way of it
service      the kubelet's calls, answered from the books
serving      listening, and staying registered with the kubelet
sources      asking the node who has which ids
attester     when to ask, and what was found
publisher    writing it to the API server
hardware     the GPUs: what is there, what is ill
neighbours   GPUs that pods have whole, by another device plugin
inventory    GPUs on indexes that stay theirs
advertising  the devices the kubelet is told of
injection    what a container is given, and how it reaches it
isolation    holding containers to their share, and looking whether they are held
announce     Events and log lines for people
counters     metrics
http         /metrics, /healthz, /readyz
options      the command line
main         the parts, put together
"""
