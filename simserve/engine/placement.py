"""Placement: on which nodes replicas are, and in which racks."""

from collections.abc import Iterable
from dataclasses import dataclass, field

Gpus = dict[int, int]
"""Numbers of GPUs by node."""


@dataclass
class Placement:
    """Nodes of equal size, which replicas fill in the order of joining; a node is there once the first one needs it."""

    gpus_per_node: int
    nodes_per_rack: int | None = None
    """None: all nodes are in one rack."""
    free: Gpus = field(default_factory=dict)
    """Free GPUs of each node that has not failed."""
    n_nodes: int = 0
    """Nodes so far; a number is never used again."""

    def place(self, n_gpus: int) -> Gpus:
        """Place a replica; return the GPUs that it takes of each node. One that does not fit into a node takes whole
        ones."""
        taken: Gpus = {}
        while n_gpus > 0:
            n = min(n_gpus, self.gpus_per_node)
            node = next((each for each, free in self.free.items() if free >= n), None)
            if node is None:
                node, self.n_nodes = self.n_nodes, self.n_nodes + 1
                self.free[node] = self.gpus_per_node
            self.free[node] -= n
            taken[node] = n
            n_gpus -= n
        return taken

    def leave(self, taken: Gpus) -> None:
        """Free the GPUs of a replica."""
        for node, n in taken.items():
            if node in self.free:
                self.free[node] += n

    def has(self, nodes: Iterable[int]) -> bool:
        """Return whether none of these nodes has failed."""
        return all(node in self.free for node in nodes)

    def rack_of(self, node: int) -> int:
        """Return the rack of a node."""
        return 0 if self.nodes_per_rack is None else node // self.nodes_per_rack

    def lose(self, node: int, *, whole_rack: bool) -> Gpus:
        """Lose a node, or all of its rack; no replica is placed there any more. Return the free GPUs of those lost."""
        lost = {node}
        if whole_rack:
            lost = {each for each in range(self.n_nodes) if self.rack_of(each) == self.rack_of(node)}
        return {each: self.free.pop(each, 0) for each in lost}
