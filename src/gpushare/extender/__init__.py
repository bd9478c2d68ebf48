"""`gpushare extender`: beside a stock kube-scheduler, it decides which GPU a pod gets.

    kube-scheduler ── filter, prioritize, preempt, bind ──► server ──► decide, bind
    kube-apiserver ── list+watch of nodes and pods ──► state ──► nudge, announce, metrics

wire          the scheduler's JSON, and the old add-on's
state         nodes, pods, reservations: the ledger kept current
waiting       pods without a node that ask for GPU memory
nominations   room promised to pods that are not there yet
decide        filter, prioritize, preempt: answers from memory alone
asks          what the scheduler asked last about each pod
bind          one pod to one node: re-check, choose, reserve, write
classwait     a bind that must wait for the kubelet
settle        reservations that nobody has confirmed
leaving       pods that left before anybody saw which GPU they had
nudge         waking waiting pods when there is room (plan: whom, and where to)
announce      Events for people
gauges        the cluster's GPUs as metrics
counters      the extender's own metrics
audit         the books against themselves
server        HTTP
options       the command line
main          wiring
"""
