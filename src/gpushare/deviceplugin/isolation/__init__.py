"""Holding the containers of this node to their share, and looking whether they are held.

isolator       whether this node can, how much a container may use, and preparing its files
guarding       finds containers that run without the library
truth          compares the driver's figures with the library's own
usage          what each container uses: for metrics and for people
usage_command  `gpushare device-plugin usage`
"""
