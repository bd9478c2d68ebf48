"""`gpushare-testcluster demo`: the whole system, shown step by step on a machine without a GPU.

* running.py  its beginning and end: what it needs, signals, taking everything down
* story.py    the steps, in order: what to change to show something else
* stage.py    what a step does: say a line, show a command, wait for the cluster
* output.py   where the text goes, and when it stops

gpushare is started as programs, never imported: this is what a user sees.
"""

from gpushare_testcluster.demo.running import run

__all__ = ["run"]
