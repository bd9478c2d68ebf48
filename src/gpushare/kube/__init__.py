"""Talking to the API server.

objects     the API objects, only the fields used (needs msgspec alone)
reading     API objects -> the model: what a node has, what a pod asks for (pure)
cluster     all of a cluster's objects -> a ledger; selector: label selectors (pure)

connection  requests and streams, typed errors (`errors`); on top of
            config (kubeconfig and in-cluster), kubeconfig, credentials, tls
resources   kinds, selectors, paths of objects
listing     one consistent list, page by page
reflector   list+watch of one kind of object; on top of watch, listing, backoff
firstlist   waiting for the first lists without the garbage collector
binding     binding a pod with its annotations, and what a refusal means
patches     the other writes: annotations, nominations, node status
events      Events for people, rate-limited
"""
