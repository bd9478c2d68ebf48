"""The node part: a real kubelet and containerd 2 beside the control plane. Needs root.

machine.py is where to start.

* machine.py       `Node`, which puts the rest together
* plugin.py        its part that runs the device plugin
* watching.py      its part that looks at pods and containers
* layout.py        what a node is on disk, and its fixed facts
* requirements.py  what this machine must have; runc and busybox from apt
* namespace.py     the mount namespace everything of the node lives in
* cgroups.py       the node's own cgroup: ending what is in it, removing it
* images.py        the tiny images, made here
* runtime.py       containerd: its configuration; what containers run
* kubelet.py       the kubelet: its configuration, credentials and readiness
* leftovers.py     what `down` does about a node
* fixtures.py      for pytest
"""
