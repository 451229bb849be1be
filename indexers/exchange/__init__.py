"""Exchange of snapshots with people and other programs: export, import, comparison, search."""
