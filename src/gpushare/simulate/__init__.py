"""`gpushare simulate`: where would these pods go, and why not? No cluster needed.

The input's way through the folder:

source       files, folders, stdin -> documents (JSON or YAML), each with where it stands
documents    a document -> typed objects
faults       what is wrong with an object, said so that its author can mend it
objects      the fields of API objects that only the simulator reads
values       checks of values that the API server would refuse
intake       all documents -> one `Input`: nodes, pods, controllers, priority classes
workloads    controllers -> the pods they lack
nodespec     `--node name=a,gpus=4x15`
sharing      `--share SELECTOR`: nodes that do not share yet, as if they did
priority     the order in which pods are placed
hosts        CPU, memory and every other resource but GPU memory
constraints  nodeSelector, node affinity, taints
unmodelled   what pods use and the simulator does not model
nodes        the nodes of a scene
staging      an `Input` and the options -> the scene
scene        the scene: nodes, who stands on them, who waits for a place
chooser      the best node for one pod, kept current over many
refusals     why a pod has no place, in words
outage       `--without NODE[:GPU]`: the scene after this has failed
engine       the run: a `Scene` -> an `Outcome`
compare      several policies side by side
progress     a bar on the terminal
advice       notes on an outcome
output       what is printed
arguments    the command line
main         wiring
"""
