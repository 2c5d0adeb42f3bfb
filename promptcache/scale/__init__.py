"""Several replicas: which one answers a request, and what happens to a stream whose replica ends.

These parts use no network and no torch. They know replicas by name, and tokens by ID. The application for Ray
Serve is `promptcache.scale.ray_app`.
"""

from promptcache.scale.resume import MAX_RESUBMISSIONS, Attempt, Submit, TokenGroup, resumed
from promptcache.scale.routing import Replica, by_hash, route

__all__ = ["MAX_RESUBMISSIONS", "Attempt", "Replica", "Submit", "TokenGroup", "by_hash", "resumed", "route"]
