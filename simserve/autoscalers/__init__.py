"""Autoscalers: how many replicas a pool has; one file a policy, named as in a scenario."""
