"""Several replicas: which one answers a request, and what happens to a stream whose replica ends.

This room has neither a network nor torch. It knows replicas by name and tokens by number.
"""

from promptcache.scale.resume import MAX_RESUBMISSIONS, Attempt, Submit, TokenGroup, resumed
from promptcache.scale.routing import Replica, by_hash, route

__all__ = ["MAX_RESUBMISSIONS", "Attempt", "Replica", "Submit", "TokenGroup", "by_hash", "resumed", "route"]
