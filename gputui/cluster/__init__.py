"""Adapters to clusters: engines that own queue, order, node and GPU."""
