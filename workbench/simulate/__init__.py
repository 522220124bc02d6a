"""What a cell would cost: rooflines for compute, links for the network, bytes for the memory; nothing is measured."""
