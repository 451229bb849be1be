"""From entities to a frozen snapshot: plan, generate the answers that the cache lacks, assemble.
Each side has one rebuild at a time.
"""
