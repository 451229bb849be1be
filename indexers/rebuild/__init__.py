"""From entities to a frozen snapshot: plan, generate what the cache lacks, assemble; one at a time
a side.
"""
