"""Talking to the API server.

objects     the API objects, only the fields used (needs msgspec alone)
reading     API objects -> the model: requests, inventories, assignments (pure)
connection  kubeconfig or in-cluster configuration, tokens, requests
reflector   list+watch of one kind of object
binding     the writes: bindings, annotations, nominations
events      Events for people, rate-limited
"""
