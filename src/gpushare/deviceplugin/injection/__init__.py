"""What a container that was granted ids is given, and how it reaches it.

choosing     how containers get their GPUs on this node: the decision
injector     following what that depends on; the answer to Allocate
proving      whether the container runtime does what it was told
allocations  the directory, the files and the CDI device of each allocation
edits        what that device changes in a container
environment  a container's environment variables
retiring     removing what earlier versions installed
"""
