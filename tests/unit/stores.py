"""A store for a coordinator host that has no followers."""

from rendezvous.store.replicated_store import ReplicatedStore


def lone_store() -> ReplicatedStore:
    store = ReplicatedStore(founder=True)
    store.lead(0, 1, (), 0.0, anew=True)
    return store
