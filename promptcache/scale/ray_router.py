"""The router of the Ray Serve application: Ray asks it to which replicas a request should go.

Ray pickles the class by its name, so it has a file of its own.
"""

from __future__ import annotations

from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica

from promptcache.scale.routing import Replica, route


class SchemaRouter(RequestRouter):
    """Sends requests of one schema to one replica, as `promptcache.scale.route` orders them.

    Ray's `FIFOMixin` must not be among its bases: it gives the replica of one request to the first waiting request.
    """

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Return the replicas in the order in which Ray should try them, each in a list of its own."""
        affinity = pending_request.args[0].affinity if pending_request is not None and pending_request.args else ""
        by_name = {each.replica_id.unique_id: each for each in candidate_replicas}
        replicas = [
            Replica(name=name, load=self.replica_queue_len_cache.get(each.replica_id) or 0)
            for name, each in by_name.items()
        ]
        return [[by_name[each.name]] for each in route(affinity, replicas)]
