"""Draft trees: growing, packing, masks. numpy only."""

from smartree.tree.draft_tree import DraftTree, forest_of
from smartree.tree.forest import Candidates, Forest, Proposal
from smartree.tree.packed import PackedTrees, pack

__all__ = ["Candidates", "DraftTree", "Forest", "PackedTrees", "Proposal", "forest_of", "pack"]
