"""Snapshots as people and other programs use them: export, import, compare, search."""
